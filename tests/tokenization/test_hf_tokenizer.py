"""The steps of Hugging Face's tokenizer.json: done as the tokenizers library does them,
in the graph too, or refused there by name.

    python -m pytest tests/tokenization/test_hf_tokenizer.py

The expected ids were computed with tokenizers 0.23.3.
"""

import json
import re

import pytest

from albert_tf.checkpoints import tokenizer_files
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer_json
from albert_tf.tokenization.tokenizer import FullTokenizer

TEXTS = ["że Ż ΣΑΣ", "``a'' 学a", "हि x\ue000y\u200b", "É ﬁ " + "a" * 101]
CHARS = sorted(set("▁żzeZ\"`'aAहिxyÉéEﬁfiΣΑσας学Ż"))
UNIGRAM = {"type": "Unigram", "unk_id": 1, "vocab": [
    *([name, 0.0] for name in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    *([char, -5.0] for char in CHARS)]}
WORD_PIECE = {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100,
              "continuing_subword_prefix": "##", "vocab": {
    piece: i for i, piece in enumerate([
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARS,
        *(f"##{char}" for char in CHARS)])}}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
             "split": True}
BERT = {"type": "BertPreTokenizer"}
QUOTES = [{"type": "Replace", "pattern": {"String": quote}, "content": '"'}
          for quote in ("``", "''")]
STRIPS = [{"type": "NFKD"}, {"type": "StripAccents"}]
LOWER = {"type": "Lowercase"}


def sequence(*steps):
    return {"type": "Sequence", "normalizers": [*steps]}


def bert(**options):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True, **options}


def written(folder, model, normalizer=None, pre_tokenizer=None, **more):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({
        "model": model, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer or (
            METASPACE if model["type"] == "Unigram" else BERT), **more}))
    return str(path)


def loaded(path, model):
    flag = "spm_model_file" if model["type"] == "Unigram" else "vocab_file"
    return FullTokenizer(**{flag: path})


STEPS = [
    (UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER), [
        [29, 17, 12, 29, 17, 29, 26, 24, 26], [29, 5, 11, 5, 29, 30, 11],
        [29, 27, 29, 15, 1, 16, 1], [29, 12, 29, 13, 14, 29, 11, 11, 11]]),
    (UNIGRAM, sequence(LOWER, {"type": "Replace", "pattern": {"Regex": " {2,}"},
                               "content": " "}), [
        [29, 21, 12, 29, 21, 29, 26, 24, 26], [29, 10, 10, 11, 6, 6, 29, 30, 11],
        [29, 27, 28, 29, 15, 1, 16, 1], [29, 19, 29, 31, 29, 11, 11, 11, 11]]),
    (UNIGRAM, None, [
        [29, 21, 12, 29, 20, 29, 23, 22, 23], [29, 10, 10, 11, 6, 6, 29, 30, 11],
        [29, 27, 28, 29, 15, 1, 16, 1], [29, 18, 29, 31, 29, 11, 11, 11, 11]]),
    (WORD_PIECE, bert(), [
        [17, 39, 17, 26, 51, 53], [10, 10, 11, 6, 6, 30, 11], [27, 55, 15, 43],
        [12, 31, 1]]),
    (WORD_PIECE, bert(strip_accents=False), [
        [21, 39, 21, 26, 51, 53], [10, 10, 11, 6, 6, 30, 11], [27, 55, 15, 43],
        [19, 31, 1]]),
    (WORD_PIECE, bert(lowercase=False), [
        [21, 39, 20, 23, 49, 50], [10, 10, 11, 6, 6, 30, 11], [27, 55, 15, 43],
        [18, 31, 1]]),
    (WORD_PIECE, bert(lowercase=False, strip_accents=True), [
        [17, 39, 9, 23, 49, 50], [10, 10, 11, 6, 6, 30, 11], [27, 55, 15, 43],
        [8, 31, 1]]),
    (WORD_PIECE, bert(handle_chinese_chars=False), [
        [17, 39, 17, 26, 51, 53], [10, 10, 11, 6, 6, 30, 38], [27, 55, 15, 43],
        [12, 31, 1]]),
    (WORD_PIECE, bert(clean_text=False), [
        [17, 39, 17, 26, 51, 53], [10, 10, 11, 6, 6, 30, 11], [27, 55, 1],
        [12, 31, 1]]),
    (WORD_PIECE, sequence({"type": "NFD"}, LOWER, {"type": "StripAccents"}), [
        [17, 39, 17, 26, 51, 53], [10, 10, 11, 6, 6, 30, 38], [27, 1], [12, 31, 1]]),
    (WORD_PIECE, None, [
        [21, 39, 20, 23, 49, 50], [10, 10, 11, 6, 6, 30, 38], [27, 55, 1],
        [18, 31, 1]])]


@pytest.mark.parametrize("model, normalizer, expected", STEPS)
def test_known_steps_are_done(model, normalizer, expected, tmp_path):
    """The ids, also in batches, with offsets, and after being written and read."""
    tokenizer = loaded(written(tmp_path, model, normalizer), model)
    ids = [tokenizer.encode(text) for text in TEXTS]
    assert [row[:9] for row in ids] == expected
    assert tokenizer.encode_batch(TEXTS) == ids
    assert [[span.id for span in tokenizer.tokenize_with_offsets(text)]
            for text in TEXTS] == ids
    found = tokenizer_files.find(str(tmp_path))
    for write in (lambda folder: tokenizer_files.write_huggingface(found, folder, 64),
                  lambda folder: tokenizer_files.write_plain(found, folder)):
        folder = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        write(str(folder))
        again = tokenizer_files.tokenizer_of(tokenizer_files.find(str(folder)))
        assert [again.encode(text) for text in TEXTS] == ids


def test_the_graph_does_the_same(tmp_path):
    tf = pytest.importorskip("tensorflow")
    from albert_tf.tokenization import in_graph

    texts = TEXTS + ["```` ``` '''' a``", "", "e\u0301\u0323 \u0301a 学\u0301"]
    for model, normalizer, _ in STEPS[4:]:
        tokenizer = loaded(written(tmp_path, model, normalizer), model)
        ops = in_graph.operations(tokenizer)
        expected = [tokenizer.tokenize_with_offsets(text) for text in texts]
        given = tf.constant(texts)
        assert ops.ids(ops.prepare(given)).to_list() == [
            [span.id for span in row] for row in expected]
        assert [part.to_list() for part in ops.located(given)] == [
            [[span.id for span in row] for row in expected],
            [[span.start for span in row] for row in expected],
            [[span.end - 1 for span in row] for row in expected]]


@pytest.mark.parametrize("model, parts, words", [
    (UNIGRAM, {}, "spiece.model"),
    (WORD_PIECE, {"normalizer": sequence({"type": "NFKC"})}, "NFKC"),
    (WORD_PIECE, {"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace")])
def test_what_the_graph_cannot_do_is_refused_by_name(model, parts, words, tmp_path):
    pytest.importorskip("tensorflow")
    from albert_tf.tokenization import in_graph

    path = written(tmp_path, model, **parts)
    with pytest.raises(InputError, match=f"{path}.*{words}"):
        in_graph.operations(loaded(path, model))


def test_quotes_have_both_their_characters(tmp_path):
    tokenizer = loaded(written(tmp_path, *STEPS[0][:2]), UNIGRAM)
    assert [(span.piece, span.start, span.end) for span in
            tokenizer.tokenize_with_offsets("```a''")] == [
        ("▁", 0, 0), ('"', 0, 2), ("`", 2, 3), ("a", 3, 4), ('"', 4, 6)]


@pytest.mark.parametrize("model, parts, words", [
    (UNIGRAM, {"post_processor": {"type": "RobertaProcessing"}}, "RobertaProcessing"),
    (UNIGRAM, {"added_tokens": [{"id": 99, "content": "<x>"}]}, "'<x>'"),
    ({**WORD_PIECE, "unk_token": "<unk>"}, {}, "unk_token='<unk>'"),
    ({**WORD_PIECE, "continuing_subword_prefix": "@@"}, {}, "prefix='@@'"),
    *(({**UNIGRAM, **damage}, {}, "") for damage in (
        {"vocab": [*UNIGRAM["vocab"], ["a", -1.0]]}, {"unk_id": None}, {"unk_id": 99}))])
def test_others_are_refused_by_name(model, parts, words, tmp_path):
    path = written(tmp_path, model, **parts)
    with pytest.raises(InputError, match=f"{path}.*{re.escape(words)}"):
        loaded(path, model)


def sentencepiece_model():
    """The SentencePiece model that UNIGRAM stands for."""
    proto = tokenizer_json.model_proto()()
    for i, (piece, score) in enumerate(UNIGRAM["vocab"]):
        proto.pieces.add(piece=piece, score=score, type=2 if i == 1 else 3 if i < 5 else 1)
    proto.trainer_spec.pad_id, proto.trainer_spec.unk_id = 0, 1
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
    proto.normalizer_spec.name = "nmt_nfkc"
    return proto.SerializeToString()


def folder_of(tmp_path, config=None, vocab=None, spiece=False):
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if vocab:
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab))
    if spiece:
        (tmp_path / "spiece.model").write_bytes(sentencepiece_model())
    return str(tmp_path)


def tokens(folder, text):
    tokenizer = tokenizer_files.tokenizer_of(tokenizer_files.find(folder))
    return tokenizer.tokenize(tokenizer.prepare(text))


def test_settings_beside_a_vocabulary(tmp_path):
    """As transformers 5.24 does it with these folders."""
    config = {"tokenizer_class": "AlbertTokenizer", "keep_accents": True}
    assert tokens(folder_of(tmp_path, config, spiece=True), "Ża ``É") == [
        "▁", "ż", "a", "▁", '"', "é"]
    assert tokens(folder_of(tmp_path, {**config, "keep_accents": False}), "Ża ``É") == [
        "▁", "z", "a", "▁", '"', "e"]
    (tmp_path / "spiece.model").unlink()
    config = {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False,
              "strip_accents": False}
    assert tokens(folder_of(tmp_path, config, WORD_PIECE["vocab"]), "Ża 学a") == [
        "ż", "##a", "学", "##a"]
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False,
              "strip_accents": True}
    assert tokens(folder_of(tmp_path, config), "Ża 学a") == ["Z", "##a", "学", "a"]


@pytest.mark.parametrize("config, words", [
    ({"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
     "BertJapaneseTokenizer"),
    ({"tokenizer_class": "XLMRobertaTokenizer"}, "XLMRobertaTokenizer"),
    ({"do_basic_tokenize": False}, "do_basic_tokenize=False")])
def test_other_classes_and_settings_are_refused(config, words, tmp_path):
    with pytest.raises(InputError, match=words):
        tokenizer_files.find(folder_of(tmp_path, config, WORD_PIECE["vocab"]))


def test_the_class_chooses_and_the_steps_of_tokenizer_json_decide(tmp_path):
    def found(config):
        path = tokenizer_files.find(folder_of(
            tmp_path, config, WORD_PIECE["vocab"], spiece=True)).path
        return path.rpartition("/")[2]

    assert found({}) == found({"tokenizer_class": "AlbertTokenizer"}) == "spiece.model"
    assert found({"tokenizer_class": "BertTokenizerFast"}) == "vocab.txt"
    written(tmp_path, UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER))
    assert found({"do_lower_case": False, "keep_accents": True}) == "spiece.model"
    assert tokens(str(tmp_path), "Ża") == ["▁", "z", "a"]
    written(tmp_path, UNIGRAM, LOWER)  # It does less than the model: no NFKC.
    assert found({}) == "tokenizer.json"


def test_a_tokenizer_json_without_its_model_is_named(tmp_path, caplog):
    path = written(tmp_path, UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER))
    tokenizer_files.find(str(tmp_path))
    assert path in caplog.text and "spiece.model" in caplog.text
    caplog.clear()
    tokenizer_files.find(folder_of(tmp_path, spiece=True))
    assert not caplog.text


def test_a_run_keeps_what_its_tokenizer_json_says(tmp_path):
    path = written(tmp_path, WORD_PIECE, bert(strip_accents=False))
    task = {"vocabulary": {"file": "tokenizer.json", **loaded(path, WORD_PIECE).keeps},
            "vocabulary_flag": "vocab_file", "flags": {"do_lower_case": True}}
    (tmp_path / "task.json").write_text(json.dumps(task))
    assert tokens(str(tmp_path), "Ż") == ["ż"]
    task["vocabulary"]["strip_accents"] = True
    (tmp_path / "task.json").write_text(json.dumps(task))
    with pytest.raises(InputError, match="keeps accents"):
        tokens(str(tmp_path), "Ż")
    task["vocabulary"]["rules"] = {"split": 1}
    (tmp_path / "task.json").write_text(json.dumps(task))
    with pytest.raises(InputError, match="task.json.*split"):
        tokens(str(tmp_path), "Ż")


def test_vocabularies_given_by_their_path(tmp_path):
    path = written(tmp_path, UNIGRAM)
    assert not loaded(path, UNIGRAM).do_lower_case
    # Its name does not matter.
    other = tmp_path / "spm.model"
    other.write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert not loaded(str(other), UNIGRAM).do_lower_case
    found = Vocabulary(written(tmp_path, UNIGRAM, sequence(LOWER)), None)
    assert tokenizer_files.tokenizer_of(found).do_lower_case
