"""The whole command of convert_checkpoint.py.

    python -m pytest tests/scripts/test_convert_checkpoint.py
"""

import subprocess
import sys

from albert_tf.checkpoints import formats
from tests.helpers import FIXTURES, ROOT

SOURCE = FIXTURES / "interop" / "hf" / "pretraining_bin_4_30"


def run(*flags):
    return subprocess.run(
        [sys.executable, str(ROOT / "convert_checkpoint.py"), *map(str, flags)],
        capture_output=True, text=True, check=False, cwd=ROOT)


def test_report_and_folder(tmp_path):
    output = tmp_path / "preset"
    flags = f"--input={SOURCE}", f"--output={output}", "--format=keras_hub"
    refused = run(*flags)
    assert refused.returncode == 1 and not output.exists()
    assert ("the masked-LM head of keras-hub has the epsilon 1e-05, that of this model "
            "1e-12, so that its outputs would differ; leave the heads out "
            "(--encoder_only).") in refused.stderr
    done = run(*flags, "--encoder_only")
    assert done.returncode == 0, done.stderr
    for words in ("25 tensors matched, 10 dropped, 0 missing",
                  "sop_classifier.classifier.bias, sop_classifier.classifier.weight",
                  "0, 1, 2, ...: albert.embeddings.position_ids", str(output)):
        assert words in done.stderr
    assert formats.read(str(output)).format == "keras_hub"
    again = run(f"--input={SOURCE}", f"--output={output}", "--format=hf")
    assert again.returncode == 1
    assert again.stderr == (f"{ROOT / 'convert_checkpoint.py'}: --output={output} "
                            "exists already; choose a new folder.\n")


def test_a_config_where_the_folder_has_none(tmp_path):
    source = FIXTURES / "interop" / "tf_models" / "pretrainer"
    flags = f"--input={source}", f"--output={tmp_path / 'hf'}", "--format=hf"
    refused = run(*flags)
    assert refused.returncode == 1 and "give the config" in refused.stderr
    done = run(*flags, "--model=base", "--config_overrides=vocab_size=500,"
               "embedding_size=16,hidden_size=32,intermediate_size=64,num_hidden_layers=3,"
               "num_attention_heads=4,max_position_embeddings=32")
    assert done.returncode == 0, done.stderr
    assert formats.read(str(tmp_path / "hf")).heads == {"masked_lm": 1}
