"""Hugging Face's tokenizer.json, both ways.

    python -m pytest tests/tokenization/test_tokenizer_json.py [-m shared]
"""

import gzip
import json

import pytest

from albert_tf.checkpoints import tokenizer_files
from albert_tf.errors import InputError
from albert_tf.tokenization import hf_tokenizer, tokenizer_json
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import FIXTURES, SHARED

SPM = str(FIXTURES / "spm" / "en4k.model")


def test_five_added_tokens_and_lowered_scores(tmp_path):
    value = tokenizer_json.from_sentencepiece(SPM)
    assert [token["content"] for token in value["added_tokens"]] == list(
        tokenizer_json.SPECIAL)
    scores = dict(map(tuple, value["model"]["vocab"]))
    split = [score for piece, score in scores.items()
             if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()]
    assert split and max(split) < -100
    kinds = [step["type"] for step in value["normalizer"]["normalizers"]]
    assert "Lowercase" in kinds and "NFKD" in kinds
    path = tmp_path / "tokenizer.json"
    for lower in (True, False):
        path.write_text(json.dumps(tokenizer_json.from_sentencepiece(SPM, lower)))
        written = hf_tokenizer.from_json(str(path))
        assert (written.do_lower_case, written.strip_accents) == (lower, True)
        own = FullTokenizer(spm_model_file=SPM, do_lower_case=lower)
        text = "The  Café ½ cost\u2028 them, \u0939\u093f"
        assert written.tokenize(text) == own.tokenize(own.prepare(text))


@pytest.mark.parametrize("content, named", [
    ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "BPE"),
    ('{"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}}', "--vocab_file"),
    ('{"model": {"type": "Unigram", "vocab": [["a"]]}}', "damaged"),
    ('{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}, '
     '"normalizer": "NFKC"}', "Normalizer"),
    ('{"class_name": "AlbertTokenizer"}', "model"), ("{", "not JSON")])
def test_wrong_files(content, named, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}.*{named}"):
        FullTokenizer(spm_model_file=str(path))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["tokenizer_v4_fast", "masked_lm_text_v5"])
def test_hugging_faces_own_files(name, tmp_path):
    """Made by transformers 4.57 and 5.23 from the released model. Beside that model they
    decide how text is cleaned; alone they are read as the tokenizers library does it."""
    folder = SHARED / "golden" / "interop" / "hf" / name
    path, zipped = tmp_path / "tokenizer.json", folder / "tokenizer.json.gz"
    path.write_bytes(gzip.decompress(zipped.read_bytes()) if zipped.exists()
                     else (folder / "tokenizer.json").read_bytes())
    lines = (SHARED / "data" / "wiki_en" / "dev.txt").read_text("utf-8").split("\n")[:900]
    alone = tokenizer_files.tokenizer_of(tokenizer_files.find(str(tmp_path)))
    engine = hf_tokenizer.tokenizers().Tokenizer.from_file(str(path))
    assert alone.encode_batch(lines) == [
        engine.encode(line, add_special_tokens=False).ids for line in lines]
    model = SHARED / "data" / "spm_en" / "30k-clean.model"
    (tmp_path / "spiece.model").write_bytes(model.read_bytes())
    beside = tokenizer_files.tokenizer_of(tokenizer_files.find(str(tmp_path)))
    assert beside.vocabulary_path.endswith("spiece.model") and beside.rules.quotes
    released = FullTokenizer(spm_model_file=str(model))
    lines = [line for line in lines if "``" not in line and "''" not in line]
    assert beside.encode_batch(lines) == released.encode_batch(lines)


def test_a_package_of_another_protobuf_gives_one_sentence(monkeypatch):
    """As with TensorFlow 2.18: the module runs into protobuf's check."""
    import sentencepiece

    def refuse(name):
        raise TypeError("gencode 7.36.1 runtime 5.29.5")

    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setattr(sentencepiece, "__getattr__", refuse, raising=False)
    with pytest.raises(InputError, match="runtime 5.29.5.*install sentencepiece==0.2.0"):
        tokenizer_json.model_proto()
