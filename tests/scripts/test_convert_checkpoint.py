"""The whole command of convert_checkpoint.py."""

from albert_tf.checkpoints import formats
from tests.commands import run_commands
from tests.helpers import FIXTURES

INTEROP = FIXTURES / "interop"


def test_reports_and_folders(tmp_path):
    preset, hf = ([f"--input={INTEROP / source}", f"--output={tmp_path / to}",
                   f"--format={to}"] for source, to in (
                       ("hf/pretraining_bin_4_30", "keras_hub"), ("tf_models/pretrainer", "hf")))
    config = "--config_overrides=" + (
        "vocab_size=500,embedding_size=16,hidden_size=32,intermediate_size=64,"
        "num_hidden_layers=3,num_attention_heads=4,max_position_embeddings=32")
    with run_commands("convert_checkpoint", {
            "heads": preset, "right": [*preset, "--encoder_only"],
            "no config": hf, "config": [*hf, "--model=base", config]}) as results:
        for name, pattern in (("heads", "--encoder_only"), ("no config", "give the config")):
            assert results[name]["status"] == 1 and pattern in results[name]["stderr"]
        assert not list(tmp_path.iterdir())
        log = results.ok("right")["log"]
        for words in ("25 tensors matched, 10 dropped, 0 missing",
                      "sop_classifier.classifier.bias, sop_classifier.classifier.weight",
                      "0, 1, 2, ...: albert.embeddings.position_ids", str(tmp_path)):
            assert words in log
        assert formats.read(str(tmp_path / "keras_hub")).format == "keras_hub"
        results.ok("config")
        assert formats.read(str(tmp_path / "hf")).heads == {"masked_lm": 1}
        assert "exists already" in results.run([*preset, "--encoder_only"])["stderr"]
