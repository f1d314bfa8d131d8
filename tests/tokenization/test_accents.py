"""Accents: stripped as in the release, or kept and remembered with the vocabulary.

    python -m pytest tests/tokenization/test_accents.py
"""

import pickle

import pytest

from albert_tf.checkpoints import tokenizer_files, vocabulary
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.finetuning.squad.alignment import align_paragraph
from albert_tf.tokenization import train_sentencepiece
from albert_tf.tokenization.sentencepiece_tokenizer import keeps_accents
from albert_tf.tokenization.tokenizer import FullTokenizer

TEXT = ["schön ist die Größe", "schon war es groß", "ガラス と カラス", "ça va déjà là"] * 30


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory):
    """Models without and with accents."""
    made = {}
    for strips in (True, False):
        path = tmp_path_factory.mktemp("spm") / "spm.model"
        path.write_bytes(train_sentencepiece.train(TEXT, train_sentencepiece.Options(
            60, strip_accents=strips, num_threads=1), False).model)
        made[strips] = str(path)
    return made


def test_what_pieces_keep(models):
    for strips, text in ((True, "schon ist カ"), (False, "schön ist ガ")):
        tokenizer = FullTokenizer(spm_model_file=models[strips])
        assert tokenizer.strip_accents == strips
        assert tokenizer.decode(tokenizer.encode("Schön ist ガ")) == text


def test_the_model_says_so_and_a_mismatch_is_refused(models):
    for strips in (True, False):
        assert FullTokenizer(spm_model_file=models[strips], strip_accents=strips)
    with pytest.raises(InputError, match="give --strip_accents=false"):
        FullTokenizer(spm_model_file=models[False], strip_accents=True)
    # A folder of Hugging Face may say so; the scripts refuse the flag.
    kept = FullTokenizer(spm_model_file=models[True], strip_accents=False)
    with pytest.raises(InputError, match="give --strip_accents=true"):
        kept.check_keeps_accents()
    FullTokenizer(spm_model_file=models[False]).check_keeps_accents()
    tokenizer = FullTokenizer(spm_model_file=models[False])
    assert tokenizer.keeps == {"strip_accents": False}
    assert pickle.loads(pickle.dumps(tokenizer)).encode("schön") == (
        tokenizer.encode("schön"))


def test_batches_places_and_passages_keep_them_too(models):
    tokenizer = FullTokenizer(spm_model_file=models[False])
    text = "Schön, die Größe: ガラス!"
    assert tokenizer.prepare_batch([text]) == [tokenizer.prepare(text)] == [text.lower()]
    assert tokenizer.encode_batch([text]) == [tokenizer.encode(text)]
    spans = tokenizer.tokenize_with_offsets(text)
    assert [span.id for span in spans] == tokenizer.encode(text)
    assert all(text[span.start:span.end].lower() == span.piece.strip("▁")
               for span in spans)
    found = align_paragraph(text, tokenizer)
    assert found and text[found.starts[0]:found.ends[-1] + 1] == text


def test_an_extended_vocabulary_keeps_them(models):
    extension = train_sentencepiece.extend(
        models[False], [
            f"{a} {b}" for a in ("schöner", "größer", "schönes", "größtes")
            for b in ("schöner", "große", "schöne", "größer")] * 9,
        train_sentencepiece.ExtendOptions(3, num_threads=1))
    assert keeps_accents(extension.model)
    assert any("ö" in piece for piece in extension.pieces)


def test_models_remember(models, tmp_path):
    kept = {"file": "a", "sha256": "1", "strip_accents": False}
    vocabulary.check(kept, kept, "runs")
    with pytest.raises(InputError, match="--strip_accents=false"):
        vocabulary.check(kept, {"file": "a", "sha256": "1"}, "runs")
    with pytest.raises(InputError, match="--strip_accents=true"):
        vocabulary.check({"file": "a", "sha256": "1"}, kept, "runs")
    for strips in (True, False):
        folder = tmp_path / str(strips)
        folder.mkdir()
        tokenizer_files.write_huggingface(
            Vocabulary(models[strips]), str(folder), 64)
        again = tokenizer_files.tokenizer_of(tokenizer_files.find(str(folder)))
        assert again.strip_accents == strips
        assert again.tokenize(again.prepare("Größe")) == FullTokenizer(
            spm_model_file=models[strips]).tokenize(again.prepare("Größe"))
