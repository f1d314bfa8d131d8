"""What a corpus in a language needs: its file, and warnings without one.

    python -m pytest tests/text/test_languages.py
"""

import json
import unicodedata

import pytest

from albert_tf.errors import InputError
from albert_tf.text import languages
from albert_tf.text.languages import Language
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.commands import run_commands

ENGLISH = "The old mill by the river grinds corn, as Zoe in the cafe says. " * 5


@pytest.mark.parametrize("codes, strips, word_start", [
    (["en"], True, "release"), (["zh"], True, "release"),
    (["de"], False, "sentencepiece"), (["kk"], False, "sentencepiece"),
    (["vi"], False, "sentencepiece"), (["ko"], False, "sentencepiece"),
    (["ja"], False, "release"), (["bo"], False, "release"),
    (["en", "ru"], False, "sentencepiece"), (["zh", "ru"], False, "release")])
def test_what_a_language_needs(tmp_path, codes, strips, word_start):
    paths = [str(tmp_path / code) for code in codes]
    for path, code in zip(paths, codes):
        Language.of(code).write(path)
    assert languages.of_corpora([f"{paths[0]}.gz", *paths[1:], "none"]) == Language(
        " ".join(sorted(codes)), strips, word_start)


def test_a_corpus_without_a_language(tmp_path):
    assert languages.of_corpora([str(tmp_path / "a")]) is None
    (tmp_path / "a.language.json").write_text('{"language": "kk"}')
    with pytest.raises(InputError, match="a.language.json: .*strip_accents"):
        languages.of_corpora([str(tmp_path / "a")])


@pytest.mark.parametrize("text, lost, by_script", [
    ("Менің үйім тауда, ойыншық жай тұр. Қай ай?", True, True),
    ("Ёлка стоит, ещё нет её.", True, True), ("Її їжа", True, True),
    ("Ο κόσμος είναι μεγάλος", True, True), ("Ça va, garçon", True, False),
    ("Tôi là người", True, False), ("हिन्दी में पढ़ना", True, True),
    ("ガラスが割れた", True, False), ("นี่คือบ้าน", True, False),
    ("한국어 문장입니다", False, True), ("مرحبا بالعالم", False, True),
    ("今天很冷。", False, False), (ENGLISH, False, False)])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_warnings(tmp_path, caplog, text, lost, by_script, form):
    path = tmp_path / "a.txt"
    path.write_text(unicodedata.normalize(form, text), encoding="utf-8")
    languages.warn_of_losses([str(path)], True, True)
    assert ("lose a mark" in caplog.text) == lost
    assert ("not Latin" in caplog.text) == by_script
    caplog.clear()
    languages.warn_of_losses([str(path)], False, False)
    assert not caplog.text


def test_the_next_scripts_follow(tmp_path):
    """The vocabulary keeps the settings; flags win; one without a language warns."""
    words = ["үй", "ойын", "тау", "мектеп", "балалар", "жақсы", "кітап"]
    text = "".join(f"{' '.join(words[i % 7:] + words[:i % 5])}.\n\n"[:-1 - i % 3 % 2]
                   for i in range(300))
    corpus = tmp_path / "c.txt"
    corpus.write_text(text, encoding="utf-8")

    def train(prefix, *flags):
        result = training.run([f"--input_file={corpus}", "--vocab_size=34", *flags,
                               f"--output_prefix={tmp_path}/{prefix}"])
        assert result["status"] == 0, result["stderr"]
        tokenizer = FullTokenizer(spm_model_file=f"{tmp_path}/{prefix}.model")
        return tokenizer.strip_accents, tokenizer.word_start, "й" in str(
            tokenizer.vocab), "lose a mark" in result["log"]

    def create(vocabulary, *flags):
        result = creating.run([
            f"--input_file={corpus}", f"--output_file={tmp_path}/r.tfrecord",
            f"--spm_model_file={tmp_path}/{vocabulary}.model", "--dupe_factor=1",
            "--max_seq_length=32", "--max_predictions_per_seq=5", *flags])
        assert result["status"] == 0, result["stderr"]
        made = json.loads((tmp_path / "summary-r.tfrecord.json").read_text())
        return made["settings"]["word_start"], made["vocabulary"].get(
            "strip_accents", True), "lose a mark" in result["log"]

    with (run_commands("train_sentencepiece", {}) as training,
          run_commands("create_pretraining_data", {}) as creating):
        assert train("plain") == (True, None, False, True)
        assert create("plain") == ("release", True, True)
        Language.of("kk").write(str(corpus))
        assert train("kk") == (False, "sentencepiece", True, False)
        assert train("flag", "--strip_accents") == (True, "sentencepiece", False, False)
        assert create("kk", "--word_start=release") == ("release", False, False)
        assert create("plain") == ("sentencepiece", True, True)
        (tmp_path / "c.txt.language.json").unlink()
        assert create("kk") == ("sentencepiece", False, False)
