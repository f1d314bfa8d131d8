"""Texts to a model's batch and back, as in a notebook.

    python -m pytest tests/tokenization/test_batches.py
"""

import logging

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import FIXTURES

MODELS = {"spm": dict(spm_model_file=str(FIXTURES / "spm" / "en4k.model")),
          "wp": dict(vocab_file=FIXTURES / "tokenization" / "wp_vocab.txt")}


@pytest.fixture(params=MODELS, name="tokenizer", scope="module")
def _tokenizer(request):
    return FullTokenizer(**MODELS[request.param])


def test_a_padded_batch(tokenizer):
    texts, pairs = ["The  first Text.", "Two"], ["its pair", "the second of them is long"]
    batch = tokenizer(texts, pairs)
    assert {name: (value.dtype, value.ndim) for name, value in batch.items()} == (
        dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (np.int32, 2)))
    assert batch["input_ids"].shape[1] == batch["input_mask"].sum(axis=1).max()
    for row, first, second in zip(batch["input_ids"], texts, pairs):
        a, b = tokenizer.encode(first), tokenizer.encode(second)
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        assert row.tolist() == ids + [tokenizer.pad_id] * (len(row) - len(ids))
    assert batch["segment_ids"][1].tolist().index(1) == len(tokenizer.encode("Two")) + 2
    single = tokenizer("Two")
    assert single["input_ids"].shape[0] == 1 and not single["segment_ids"].any()


def test_cut_as_in_training(tokenizer):
    text = "the text is long " * 20
    batch = tokenizer([text, text], ["its pair is short", text], max_length=24)
    assert batch["input_ids"].shape == (2, 24)
    short = len(tokenizer.encode("its pair is short"))
    assert batch["segment_ids"].sum(axis=1).tolist() == [short + 1, 11]
    assert tokenizer(text, max_length=9)["input_ids"][0, -1] == tokenizer.sep_id


def test_text_comes_back(tokenizer):
    batch = tokenizer(["The first text of them", "it is"])
    assert tokenizer.decode(batch["input_ids"]) == ["the first text of them", "it is"]
    assert tokenizer.decode(batch["input_ids"][1].tolist()) == "it is"
    assert tokenizer.decode(batch["input_ids"][0], skip_special=False).startswith("[CLS]")


@pytest.mark.parametrize("arguments, pattern", [
    (([],), r"texts is \[\]"),
    ((["a", None],), "texts is .*None"),
    ((b"bytes",), "texts is b'bytes'"),
    ((7,), "texts is 7"),
    ((["a", "b"], ["c"]), "2 texts, but 1 text_pairs"),
    (("a", None, 3), "max_length=3 leaves no room"),
    (("a", None, 8.5), "max_length=8.5"),
    (("a", None, "32"), "max_length='32'"),
])
def test_what_is_no_text_is_refused(tokenizer, arguments, pattern):
    with pytest.raises(InputError, match=pattern):
        tokenizer(*arguments)


def test_a_text_that_was_not_prepared_is_told(caplog):
    tokenizer = FullTokenizer(**MODELS["spm"])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            tokenizer.tokenize("the text")
            tokenizer.tokenize(tokenizer.prepare("Größe"))
            tokenizer.encode("Größe")
        assert not caplog.messages
        for _ in range(2):
            tokenizer.tokenize("Größe")
    assert len(caplog.messages) == 1 and "tokenizer.prepare" in caplog.text
