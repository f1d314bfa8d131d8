"""What is written here is read back by the libraries themselves.

    python -m tests.peers && python -m pytest -m peers -rP tests/checkpoints/test_peers.py
"""

import json

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.formats import convert
from albert_tf.checkpoints.restore import load
from albert_tf.errors import InputError
from tests import peers
from tests.checkpoints.test_convert import TINY, stored
from tests.golden.interop import FIXTURE_FOLDERS, case, config
from tests.helpers import FIXTURES, SHARED
from tests.serving import tiny_models

pytestmark = pytest.mark.peers
FORMAT = {"transformers5": "hf", "keras_hub": "keras_hub", "tf_models": "tf_models"}
TEXTS = ["It is.", "", "The first text of them is long. " * 8, "Größe, schön", "x"]


def compare(peer, jobs, tmp_path):
    """Outputs of a peer and of `load` for [folder, inputs], within 1e-5."""
    listed = []
    for number, (folder, inputs) in enumerate(jobs):
        given = tmp_path / f"{number}.inputs.npz"
        np.savez(given, **inputs)
        listed.append([folder, str(given), str(tmp_path / f"{number}.outputs.npz")])
    (tmp_path / "jobs.json").write_text(json.dumps(listed))
    peers.run(peer, tmp_path / "jobs.json")
    largest = 0.0
    for (folder, inputs), (_, _, outputs) in zip(jobs, listed):
        found = dict(np.load(outputs))
        ours = load(folder).model(inputs, training=False)
        assert found
        for name, value in found.items():
            if name in ("mlm_logits", "pooled_output") and name not in ours:
                continue  # A pooler that transformers adds.
            np.testing.assert_allclose(value, ours[name], atol=1e-5, rtol=1e-5,
                                       err_msg=f"{folder}: {name}")
            largest = max(largest, np.abs(value - ours[name]).max())
    print(f"{peer}: {len(jobs)} models, largest difference {largest:.1e}")


@pytest.mark.parametrize("peer", FORMAT)
def test_models(peer, tmp_path):
    jobs = []
    for name in FIXTURE_FOLDERS:
        path, inputs, _ = case(FIXTURES / "interop" / name)
        output = str(tmp_path / name.replace("/", "_"))
        try:
            convert(path, output, FORMAT[peer], config(FIXTURES / "interop" / name))
        except InputError:
            continue  # What has no counterpart; see test_convert.
        if FORMAT[peer] == "hf":
            inputs.pop("masked_lm_positions", None)
        elif "masked_lm" in formats.read(output).heads:
            inputs.setdefault("masked_lm_positions",
                              np.zeros([len(inputs["input_ids"]), 1], "i4"))
        jobs.append((output, inputs))
    assert len(jobs) > 5
    compare(peer, jobs, tmp_path)


# Of the 6,098 lines of dev.txt: "1,050" and the like.
MAY_DIFFER = 1


@pytest.mark.shared
def test_ids_of_wikipedia(tmp_path):
    path, _ = stored(tmp_path / "tf1", TINY.replace(vocab_size=30000), {})
    model = SHARED / "data" / "spm_en" / "30k-clean.model"
    (tmp_path / "tf1" / model.name).write_bytes(model.read_bytes())
    convert(path, str(tmp_path / "hf"), "hf")
    text = SHARED / "data" / "wiki_en" / "dev.txt"
    peers.run("transformers5", "--ids", tmp_path / "hf", text, tmp_path / "ids.json")
    lines = text.read_text("utf-8").split("\n")
    found = json.loads((tmp_path / "ids.json").read_text())
    expected = load(path).tokenizer.encode_batch(lines)
    differing = [line for line, a, b in zip(lines, found, expected) if a != b]
    assert len(found) == len(lines) and len(differing) <= MAY_DIFFER, differing
    print(f"transformers5: {len(lines)} lines, {len(differing)} with other ids")


def test_vectors_of_sentence_transformers(tmp_path):
    """Ours there, and theirs here."""
    peer = "sentence_transformers"
    source = tiny_models.write(tmp_path / "tf1", "pretrained")
    written = {"mean": {}, "pooled": {"pooling": "pooled", "max_seq_length": 12},
               "several": {"pooling": "lasttoken,cls,max"}}
    for name, options in written.items():
        convert(source, str(tmp_path / name), peer, **options)
    convert(source, str(tmp_path / "hf"), "hf")
    peers.run(peer, "--save", tmp_path / "hf", tmp_path / "theirs")
    convert(str(tmp_path / "theirs-all"), str(tmp_path / "back"), peer)
    folders = [tmp_path / name for name in (*written, "theirs", "theirs-all", "back")]
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    peers.run(peer, tmp_path / "texts.json", *folders)
    largest = 0.0
    for folder in folders:
        found = [answer["embedding"] for answer in albert_tf.load(folder).predict(TEXTS)]
        expected = json.loads((folder / "vectors.json").read_text())
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=folder.name)
        largest = max(largest, np.abs(np.subtract(found, expected)).max())
    print(f"{peer}: {len(folders)} models, {len(TEXTS)} texts, "
          f"largest difference {largest:.1e}")
