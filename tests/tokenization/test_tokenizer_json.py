"""Hugging Face's tokenizer.json, both ways.

    python -m pytest tests/tokenization/test_tokenizer_json.py [-m shared]
"""

import gzip
import sys

import pytest

from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer_json, tokenizer_steps
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
    kept = tokenizer_json.from_sentencepiece(SPM, do_lower_case=False)
    assert [tokenizer_steps.cleaning_of(each, "")[:2] for each in (value, kept)] == [
        (True, True), (False, True)]


@pytest.mark.parametrize("content, named", [
    ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "BPE"),
    ('{"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}}', "--vocab_file"),
    ('{"model": {"type": "Unigram", "vocab": []}}', "vocab"),
    ('{"model": {"type": "Unigram", "vocab": [["a"]]}}', "entry 0 of its vocab"),
    *(('{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}, %s}' % more,
       named)
      for more, named in (
          ('"normalizer": "NFKC"', "normalizer"),
          ('"normalizer": {"normalizers": [3]}', "normalizer"),
          ('"added_tokens": "[CLS]"', "added_tokens"),
          ('"added_tokens": [{"id": 1}]', "added_tokens"),
          ('"normalizer": {"type": "Precompiled"}', "precompiled_charsmap"),
          ('"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}',
           "precompiled_charsmap"))),
    ('{"class_name": "AlbertTokenizer"}', "model"), ("{", "not JSON")])
def test_wrong_files(content, named, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}.*{named}"):
        FullTokenizer(spm_model_file=str(path))


@pytest.mark.shared
def test_hugging_faces_own_files_give_the_release_s_ids(tmp_path):
    """Made by transformers 4.57 and 5.23 from the released model."""
    released = FullTokenizer(spm_model_file=str(
        SHARED / "data" / "spm_en" / "30k-clean.model"))
    lines = (SHARED / "data" / "wiki_en" / "dev.txt").read_text("utf-8").split("\n")
    expected = released.encode_batch(lines)
    folder = SHARED / "golden" / "interop" / "hf"
    unpacked = tmp_path / "tokenizer.json"
    unpacked.write_bytes(gzip.decompress(
        (folder / "tokenizer_v4_fast" / "tokenizer.json.gz").read_bytes()))
    for path in (unpacked, folder / "masked_lm_text_v5" / "tokenizer.json"):
        assert FullTokenizer(spm_model_file=str(path)).encode_batch(lines) == expected


class _Refused:
    """Stands before all importers and imitates a sentencepiece that protobuf refuses, as
    with TensorFlow 2.18: the module runs into protobuf's check."""

    def find_spec(self, name, path=None, target=None):
        if name == "sentencepiece.sentencepiece_model_pb2":
            raise TypeError("gencode 7.36.1 runtime 5.29.5")


def test_a_package_of_another_protobuf_gives_one_sentence(monkeypatch):
    import sentencepiece

    monkeypatch.delitem(sys.modules, "sentencepiece.sentencepiece_model_pb2",
                        raising=False)
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Refused(), *sys.meta_path])
    with pytest.raises(InputError, match="runtime 5.29.5.*install sentencepiece==0.2.0"):
        tokenizer_json.model_proto()
