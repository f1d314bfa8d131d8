"""Added tokens of a Hugging Face tokenizer: found as the tokenizers library finds them,
whichever file names them, or refused by name."""

import json
import os
import pickle

import pytest
import tokenizers

from albert_tf.checkpoints import tokenizer_files
from albert_tf.errors import InputError
from albert_tf.tokenization.tokenizer import FullTokenizer, model_proto
from tests.tokenization.test_hf_tokenizer import (
    LOWER, UNIGRAM, WORD_PIECE, bert, copies, folder_of, sentencepiece_model, sequence,
    written)

TEXT = "A[E1]é [e1] x <L> <R> x xzZx zZ [n] [/E1]a [CLS]"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# "zZ" is in the vocabulary, the others are behind it.
KINDS = {"[E1]": (0, 0, 0, 0, 1), "[/E1]": (0, 0, 0, 0, 0), "<L>": (0, 1, 0, 0, 1),
         "<R>": (0, 0, 1, 0, 0), "zZ": (1, 0, 0, 0, 0), "[N]": (0, 0, 0, 1, 0)}


def with_marker(model):
    vocab = model["vocab"]
    return {**model, "vocab": {**vocab, "zZ": len(vocab)} if isinstance(vocab, dict)
            else [*vocab, ["zZ", -99.0]]}


def added(model):
    vocab = [*with_marker(model)["vocab"]]
    size = len(vocab)
    ids = {"zZ": size - 1, **{content: size + i for i, content in enumerate(
        content for content in KINDS if content != "zZ")}}
    return [{"id": ids[content], "content": content, **dict(zip(FLAGS, map(bool, flags)))}
            for content, flags in KINDS.items()]


def loaded(folder):
    return tokenizer_files.find(str(folder))


@pytest.mark.parametrize("model, normalizer, where", [
    (UNIGRAM, sequence(LOWER), "tokenizer.json"), (UNIGRAM, sequence(LOWER), "decoder"),
    *((WORD_PIECE, bert(), where) for where in ("tokenizer.json", "decoder", "vocab.txt"))])
def test_tokens_are_found_as_by_the_library(model, normalizer, where, tmp_path):
    """Also with offsets, in batches, in other processes and in converted folders."""
    listed = added(model)
    model = with_marker(model)
    path = written(tmp_path, model, normalizer, added_tokens=listed)
    wanted = tokenizers.Tokenizer.from_file(path).encode(TEXT, add_special_tokens=False)
    decoder = {"added_tokens_decoder": {str(token["id"]): {
        name: value for name, value in token.items() if name != "id"}
        for token in listed}}
    if where == "decoder":
        written(tmp_path, model, normalizer)
        folder_of(tmp_path, decoder)
    elif where == "vocab.txt":
        (tmp_path / "tokenizer.json").unlink()
        folder_of(tmp_path, {"tokenizer_class": "BertTokenizer", **decoder},
                  model["vocab"])
    found = loaded(tmp_path)
    assert found.encode(TEXT) == found.encode_batch([TEXT])[0] == wanted.ids
    assert pickle.loads(pickle.dumps(found)).encode(TEXT) == wanted.ids
    spans = [(span.piece, TEXT[span.start:span.end])
             for span in found.tokenize_with_offsets(TEXT) if span.piece in KINDS]
    assert spans == [(content, content.replace("N", "n")) for content in (
        "[E1]", "<L>", "<R>", "zZ", "[N]", "[/E1]")]
    for folder in copies(tmp_path):
        assert loaded(folder).encode(TEXT) == wanted.ids


@pytest.mark.parametrize("files", [
    {"tokenizer_config": {"additional_special_tokens": ["[E1]", "q"]}},
    {"tokenizer_config": {"extra_special_tokens": {"a": "[E1]", "b": {"content": "q"}}}},
    {"special_tokens_map": {"additional_special_tokens": ["q"]},
     "added_tokens": {"q": 34, "[E1]": 32}}])
def test_beside_a_sentencepiece_model(files, tmp_path):
    """"[E1]" is one of its user-defined symbols, which lower-casing hides from it."""
    proto = model_proto().FromString(sentencepiece_model())
    proto.pieces.add(piece="[E1]", score=0, type=4)
    proto.pieces.add(piece="(", score=0, type=4)
    config = {"tokenizer_class": "AlbertTokenizer"}
    assert proto.pieces[32].piece == "[E1]"
    for name, content in {"tokenizer_config": {}, **files}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(
            {**(config if name == "tokenizer_config" else {}), **content}))
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    found = loaded(tmp_path)
    assert found.tokenize("A[E1]Q(q") == ["▁", "a", "[E1]", "▁", "q", "(", "q"]
    assert found.encode("A[E1]Q(q")[-4:] == [29, 1, 33, 34]
    for folder in copies(tmp_path):
        assert os.path.exists(f"{folder}/spiece.model")
        assert loaded(folder).encode("A[E1]Q(q") == found.encode("A[E1]Q(q")
    with pytest.raises(InputError, match="cannot hold a tokenizer.json or added tokens"):
        tokenizer_files.copy_sentencepiece(
            tokenizer_files.find(str(tmp_path)), str(tmp_path / "copy"))
    with pytest.raises(InputError, match=r"beside it add q\).* 34 word embeddings"):
        tokenizer_files.check(tokenizer_files.find(str(tmp_path)), 34)


def test_the_original_symbols_stay_with_the_original_tokenizer(tmp_path):
    proto = model_proto().FromString(sentencepiece_model())
    proto.pieces.add(piece="(", score=0, type=4)
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    folder_of(tmp_path, {"tokenizer_class": "AlbertTokenizer", "added_tokens_decoder": {
        "32": {"content": "(", "special": False}, "2": {"content": "[CLS]"}}})
    assert type(loaded(tmp_path)).__name__ == "SentencePieceTokenizer"


@pytest.mark.parametrize("token, words", [
    ({"id": 40, "content": "[E1]"}, r"'\[E1\]' has the id 40, but .* is 32"),
    ({"id": 40, "content": "z"}, "'z' has the id 40"), ({"id": 7, "content": ""}, ""),
    ({"id": "7", "content": "z"}, "z"), ({"id": 7}, "")])
def test_wrong_ids_are_named(token, words, tmp_path):
    path = written(tmp_path, UNIGRAM, added_tokens=[token])
    for load in (lambda: FullTokenizer(spm_model_file=path),
                 lambda: tokenizer_files.find(str(tmp_path))):
        with pytest.raises(InputError, match=f"{path}.*{words}"):
            load()
