"""extend_vocabulary: old ids stay, new pieces are used, their weights are means."""

import random
import shutil

import numpy as np
import pytest
import sentencepiece

from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer_json, train_sentencepiece
from albert_tf.tokenization.extend_vocabulary import Options, extend
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.commands import run_commands

OPTIONS = Options(num_pieces=8, num_threads=2)


def sentences(syllables, count):
    """Of 60 words of three syllables."""
    generator = random.Random(syllables)
    words = ["".join(generator.choices(syllables.split(), k=3)) for _ in range(60)]
    return [" ".join(generator.choices(words, k=9)) for _ in range(count)]


GENERAL = sentences("ba di ko lu me ra", 400)
# Its words have the same letters in other syllables.
DOMAIN = sentences("abd kol rumi deb", 150)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    made = train_sentencepiece.train(GENERAL, train_sentencepiece.Options(
        vocab_size=80, num_threads=2))
    (folder / "old.model").write_bytes(made.model)
    (folder / "domain.txt").write_text("\n".join(DOMAIN))
    return folder


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def test_new_pieces_shorten_the_domain_and_leave_the_rest(folder):
    found = extend(str(folder / "old.model"), DOMAIN, OPTIONS)
    old, new = (processor((folder / "old.model").read_bytes()), processor(found.model))
    assert len(found.pieces) == len(found.parts) == 8
    assert [new.id_to_piece(i) for i in range(len(old))] == [
        old.id_to_piece(i) for i in range(len(old))]
    assert [new.id_to_piece(len(old) + i) for i in range(8)] == list(found.pieces)
    for piece, parts in zip(found.pieces, found.parts):
        assert "".join(map(old.id_to_piece, parts)) == piece and len(parts) > 1
    assert found.pieces_before == sum(map(len, old.encode(DOMAIN)))
    assert found.pieces_after == sum(map(len, new.encode(DOMAIN)))
    assert found.pieces_after < 0.8 * found.pieces_before
    used = {i for row in new.encode(DOMAIN) for i in row}
    assert any(i >= len(old) for i in used)
    # A sentence without the new pieces is what it was.
    plain = [line for line in GENERAL if not any(
        piece.strip("\u2581") in line for piece in found.pieces)]
    assert plain and old.encode(plain) == new.encode(plain)
    assert extend(str(folder / "old.model"), DOMAIN, OPTIONS) == found


def test_only_words_that_the_old_vocabulary_cuts_up_give_pieces(folder):
    old = processor((folder / "old.model").read_bytes())
    whole = [word for line in GENERAL for word in line.split()
             if len(old.encode(word)) == 1]
    assert len(set(whole)) > 5
    with pytest.raises(InputError, match="no piece that the vocabulary lacks"):
        extend(str(folder / "old.model"), whole, OPTIONS)


@pytest.fixture(scope="module", name="results")
def _results(folder):
    import tensorflow as tf

    from albert_tf.checkpoints.folders import write_tensors
    from albert_tf.config import AlbertConfig

    rows = np.arange(80 * 4, dtype=np.float32).reshape(80, 4)
    write_tensors({"bert/embeddings/word_embeddings": rows,
                   "bert/embeddings/word_embeddings/adam_m": rows,
                   "cls/predictions/output_bias": rows[:, 0],
                   "bert/pooler/dense/bias": np.ones(4, np.float32),
                   "global_step": np.int64(7)}, str(folder / "model/model.ckpt-best"))
    (folder / "config.json").write_text(AlbertConfig(
        vocab_size=80, embedding_size=4, hidden_size=4, num_hidden_layers=1,
        num_attention_heads=1, intermediate_size=4).to_json())
    (folder / "other.json").write_text(AlbertConfig(vocab_size=81).to_json())
    # Models beside which is another vocabulary, of the same size.
    pieces = FullTokenizer(spm_model_file=str(folder / "old.model")).vocab
    for name in ("words", "pieces"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "words/vocab.txt").write_text("[PAD]\n[UNK]\n" + "".join(
        f"{piece}\n" for piece in list(pieces)[2:]))
    other = tokenizer_json.model_proto().FromString((folder / "old.model").read_bytes())
    other.pieces[-1].piece = "q"
    (folder / "pieces/spiece.model").write_bytes(other.SerializeToString())
    del tf

    def arguments(**changes):
        given = {"input_file": folder / "domain.txt",
                 "spm_model_file": folder / "old.model", "init_checkpoint":
                 folder / "model", "albert_config_file": folder / "config.json",
                 "output_dir": folder / "new", "num_pieces": 8, **changes}
        return [f"--{name}={value}" for name, value in given.items()]

    with run_commands("extend_vocabulary", {
            "made": arguments(), "again": arguments(),
            "other config": arguments(albert_config_file=folder / "other.json",
                                      output_dir=folder / "n2"),
            **{name: arguments(init_checkpoint=folder / name, output_dir=folder / "n3")
               for name in ("words", "pieces")},
    }, light={"again", "other config", "words", "pieces"}) as results:
        yield results


@pytest.mark.long
def test_rows_of_new_pieces_are_means(folder, results):
    results.ok("made")
    from albert_tf.checkpoints.folders import read_tensors
    from albert_tf.config import AlbertConfig

    tensors = read_tensors(str(folder / "new"))
    assert sorted(tensors) == ["bert/embeddings/word_embeddings",
                               "bert/pooler/dense/bias", "cls/predictions/output_bias"]
    rows = tensors["bert/embeddings/word_embeddings"]
    lines = (folder / "new/new_pieces.tsv").read_text().splitlines()
    new = FullTokenizer(spm_model_file=str(folder / "new/spm.model"))
    assert rows.shape == (88, 4) and new.vocab_size == 88 and len(lines) == 8
    for number, line in enumerate(lines):
        piece, parts = line.split("\t")
        ids = new.convert_tokens_to_ids([piece, *parts.split()])
        assert ids[0] == 80 + number
        np.testing.assert_allclose(rows[ids[0]], rows[ids[1:]].mean(axis=0), 1e-6)
    np.testing.assert_allclose(tensors["cls/predictions/output_bias"], rows[:, 0], 1e-6)
    assert AlbertConfig.from_json_file(
        str(folder / "new/albert_config.json")).vocab_size == 88


@pytest.mark.parametrize("name, sentence", [
    ("again", "--output_dir=.*new"), ("other config", "80 tokens, .* 81 word embeddings"),
    ("words", "does not have the tokens of .*vocab.txt"),
    ("pieces", "does not have the tokens of .*spiece.model")])
def test_wrong_input_gives_one_sentence(folder, results, name, sentence):
    results.ok("made")
    results.refused(name, sentence, False)
    assert not list(folder.glob("n[0-9]*"))
