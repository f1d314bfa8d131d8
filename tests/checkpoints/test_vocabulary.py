"""The vocabulary in a model's folder: recorded, copied, and compared."""

import json

import pytest

from albert_tf.checkpoints import formats, tokenizer_files, vocabulary
from albert_tf.errors import InputError
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from tests import models, tiny_run

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]


@pytest.fixture(name="words")
def _words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{piece}\n" for piece in PIECES))
    return path


def facts(path, **more):
    return {**vocabulary_of(str(path)), "kind": "WordPiece", "do_lower_case": True,
            **more}


def test_a_pretrained_folder_holds_its_vocabulary(words, tmp_path):
    folder = tmp_path / "model"
    rules = {"split_chinese": False}
    vocabulary.keep(str(folder), facts(words, do_lower_case=False, rules=rules),
                    str(words))
    tokenizer = tokenizer_files.find(str(folder))
    assert (tokenizer.vocabulary_path, tokenizer.do_lower_case) == (
        str(folder / "words.txt"), False)
    assert tokenizer.vocab == FullTokenizer(str(words)).vocab
    assert tokenizer.keeps == {"rules": rules}
    assert tokenizer.tokenize("A a") == ["[UNK]", "a"]


def test_no_other_file_is_replaced(words, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "words.txt").write_text("mine")
    with pytest.raises(InputError, match="words.txt is not the vocabulary .* of the rec"):
        vocabulary.keep(str(folder), facts(words), str(words))
    assert (folder / "words.txt").read_text() == "mine"


def test_the_file_is_found_by_its_content(words, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("other")
    assert vocabulary.file_of(facts(words), [
        "", str(tmp_path / "none"), str(tmp_path), str(other), str(words)]) == str(words)
    assert vocabulary.file_of(facts(words), [str(other)]) is None


@pytest.mark.parametrize("name", ["task.json", "vocabulary.json"])
def test_a_changed_vocabulary_is_refused(name, words, tmp_path):
    """By all that reads models: predict, serve, export, convert and load."""
    folder = tmp_path / "model"
    folder.mkdir()
    from albert_tf.checkpoints.restore import export_tf1

    export_tf1(models.AlbertForPreTraining(tiny_run.config()),
               str(folder / "model.ckpt-1"))
    (folder / "albert_config.json").write_text(tiny_run.config().to_json())
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    (folder / "words.txt").write_bytes(words.read_bytes())
    (folder / name).write_text(json.dumps(
        {"vocabulary": vocabulary_of(str(words)), "vocabulary_flag": "vocab_file"}
        if name == "task.json" else facts(words)))
    assert formats.read(str(folder)).tokenizer.vocabulary_path == str(folder / "words.txt")
    with (folder / "words.txt").open("a") as stream:
        stream.write("\n")
    for path in (folder, folder / "model.ckpt-1"):
        with pytest.raises(InputError, match=(
                "words.txt is not the vocabulary of the model.* restore it")):
            formats.read(str(path))
