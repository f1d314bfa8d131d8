"""Hugging Face's tokenizer.json: its steps are done as the tokenizers library does them,
in the graph too, or refused there by name; and it is written."""

import gzip
import json
import os
import re

import pytest
import tokenizers

from albert_tf.checkpoints import tokenizer_files
from albert_tf.errors import InputError
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.tokenizer import FullTokenizer, model_proto
from tests.helpers import FIXTURES, SHARED

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


def copies(folder):
    """Folders with the tokenizer of a folder in each form that is written."""
    found = tokenizer_files.find(str(folder))
    for name in ("plain", "huggingface"):
        (folder / name).mkdir()
        getattr(tokenizer_files, f"write_{name}")(
            found, str(folder / name), *[64] * (name == "huggingface"))
        yield str(folder / name)


STEPS = [
    (UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER)),
    (UNIGRAM, sequence(LOWER, {"type": "Replace", "pattern": {"Regex": " {2,}"},
                               "content": " "})),
    (UNIGRAM, None), (WORD_PIECE, None), (WORD_PIECE, bert()),
    (WORD_PIECE, bert(strip_accents=False)), (WORD_PIECE, bert(lowercase=False)),
    (WORD_PIECE, bert(lowercase=False, strip_accents=True)),
    (WORD_PIECE, bert(handle_chinese_chars=False)), (WORD_PIECE, bert(clean_text=False)),
    (WORD_PIECE, sequence({"type": "NFD"}, LOWER, {"type": "StripAccents"}))]


@pytest.mark.parametrize("model, normalizer", STEPS)
def test_known_steps_are_done(model, normalizer, tmp_path):
    """The ids, also in batches, with offsets, and after being written and read."""
    path = written(tmp_path, model, normalizer)
    tokenizer, library = FullTokenizer(path), tokenizers.Tokenizer.from_file(path)
    ids = [tokenizer.encode(text) for text in TEXTS]
    assert ids == [library.encode(text).ids for text in TEXTS] and all(ids)
    assert tokenizer.encode_batch(TEXTS) == ids
    assert [[span.id for span in tokenizer.tokenize_with_offsets(text)]
            for text in TEXTS] == ids
    for folder in copies(tmp_path):
        again = tokenizer_files.find(folder)
        assert [again.encode(text) for text in TEXTS] == ids


def test_the_graph_does_the_same(tmp_path, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    from albert_tf.tokenization import in_graph

    texts = TEXTS + ["```` ``` '''' a``", "", "e\u0301\u0323 \u0301a 学\u0301"]
    monkeypatch.setattr(in_graph, "_PAGES", [  # All characters take seconds.
        page for page in in_graph._PAGES if not {*"".join(texts)}.isdisjoint(page)])
    for model, normalizer in (STEPS[4], STEPS[10], (WORD_PIECE, bert(
            strip_accents=False, clean_text=False, handle_chinese_chars=False))):
        tokenizer = FullTokenizer(written(tmp_path, model, normalizer))
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
    (WORD_PIECE, {"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
    (WORD_PIECE, {"added_tokens": [{"content": "[E1]"}]}, r"'\[E1\]'.*--noexport_text")])
def test_what_the_graph_cannot_do_is_refused_by_name(model, parts, words, tmp_path):
    pytest.importorskip("tensorflow")
    from albert_tf.tokenization import in_graph

    path = written(tmp_path, model, **parts)
    with pytest.raises(InputError, match=f"{path}.*{words}"):
        in_graph.operations(FullTokenizer(path))


def test_quotes_have_both_their_characters(tmp_path):
    tokenizer = FullTokenizer(written(tmp_path, *STEPS[0]))
    assert [(span.piece, span.start, span.end) for span in
            tokenizer.tokenize_with_offsets("```a''")] == [
        ("▁", 0, 0), ('"', 0, 2), ("`", 2, 3), ("a", 3, 4), ('"', 4, 6)]


@pytest.mark.parametrize("model, parts, words", [
    (UNIGRAM, {"post_processor": {
        "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
        "trim_offsets": True, "add_prefix_space": False}}, "RobertaProcessing"),
    ({**WORD_PIECE, "unk_token": "<unk>"}, {}, "unk_token='<unk>'"),
    ({**WORD_PIECE, "continuing_subword_prefix": "@@"}, {}, "prefix='@@'"),
    *(({**UNIGRAM, **damage}, {}, "") for damage in (
        {"vocab": [*UNIGRAM["vocab"], ["a", -1.0]]}, {"unk_id": None}, {"unk_id": 99})),
    ({"type": "BPE", "vocab": {"a": 0}, "merges": []}, {}, "BPE"),
    ({"type": "WordPiece", "vocab": {"[UNK]": 0}}, {}, "missing field"),
    ({"type": "Unigram", "vocab": [["a"]]}, {}, "damaged"),
    (UNIGRAM, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAA=="}},
     "damaged"),
    (UNIGRAM, {"normalizer": "NFKC"}, "Normalizer"),
    (None, '{"class_name": "AlbertTokenizer"}', "model"), (None, "{", "not JSON")])
def test_others_are_refused_by_name(model, parts, words, tmp_path):
    path = tmp_path / "tokenizer.json"
    if model:
        written(tmp_path, model, **parts)
    else:
        path.write_text(parts)
    with pytest.raises(InputError, match=f"{path}.*{re.escape(words)}"):
        FullTokenizer(spm_model_file=path)


def sentencepiece_model():
    """The SentencePiece model that UNIGRAM stands for."""
    proto = model_proto()()
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
    tokenizer = tokenizer_files.find(folder)
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


def test_the_class_chooses_and_the_steps_of_tokenizer_json_decide(tmp_path, caplog):
    path = written(tmp_path, UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER))
    tokenizer_files.find(str(tmp_path))  # Without its model it is named.
    assert path in caplog.text and "spiece.model" in caplog.text
    caplog.clear()
    os.remove(path)

    def found(config):
        path = tokenizer_files.find(folder_of(
            tmp_path, config, WORD_PIECE["vocab"], spiece=True)).vocabulary_path
        return path.rpartition("/")[2]

    assert found({}) == found({"tokenizer_class": "AlbertTokenizer"}) == "spiece.model"
    assert found({"tokenizer_class": "BertTokenizerFast"}) == "vocab.txt"
    written(tmp_path, UNIGRAM, sequence(*QUOTES, *STRIPS, LOWER))
    assert found({"do_lower_case": False, "keep_accents": True}) == "spiece.model"
    assert tokens(str(tmp_path), "Ża") == ["▁", "z", "a"] and not caplog.text
    written(tmp_path, UNIGRAM, LOWER)  # It does less than the model: no NFKC.
    assert found({}) == "tokenizer.json"


def test_a_run_keeps_what_its_tokenizer_json_says(tmp_path):
    path = written(tmp_path, WORD_PIECE, bert(strip_accents=False))
    task = {"vocabulary": {"file": "tokenizer.json", **FullTokenizer(path).keeps},
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
    assert not FullTokenizer(path).do_lower_case
    # Its name does not matter.
    other = tmp_path / "spm.model"
    other.write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert not FullTokenizer(spm_model_file=other).do_lower_case
    assert FullTokenizer(written(tmp_path, UNIGRAM, sequence(LOWER))).do_lower_case


SPM = str(FIXTURES / "spm" / "en4k.model")


def test_five_added_tokens_and_lowered_scores(tmp_path):
    value = HfTokenizer(spm_model_file=SPM).to_json()
    assert [token["content"] for token in value["added_tokens"]] == [
        "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    scores = dict(map(tuple, value["model"]["vocab"]))
    split = [score for piece, score in scores.items() if re.search(r"\d,$", piece)]
    assert split and max(split) < -100
    path = tmp_path / "tokenizer.json"
    for lower in (True, False):
        path.write_text(json.dumps(HfTokenizer(None, lower, SPM).to_json()))
        written = FullTokenizer(str(path))
        assert (written.do_lower_case, written.strip_accents) == (lower, True)
        own = FullTokenizer(spm_model_file=SPM, do_lower_case=lower)
        text = "The  Café ½ cost\u2028 them, \u0939\u093f"
        assert written.tokenize(text) == own.tokenize(own.prepare(text))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["tokenizer_v4_fast", "masked_lm_text_v5"])
def test_hugging_faces_own_files(name, tmp_path):
    """Made by transformers 4.57 and 5.23 from the released model. Beside that model they
    decide how text is cleaned; alone they are read as the tokenizers library does it."""
    folder = SHARED / "golden" / "interop" / "hf" / name
    path, zipped = tmp_path / "tokenizer.json", folder / "tokenizer.json.gz"
    path.write_bytes(gzip.decompress(zipped.read_bytes()) if zipped.exists()
                     else (folder / "tokenizer.json").read_bytes())
    lines = (SHARED / "data" / "wiki_en" / "dev.txt").read_text("utf-8").split("\n")[:300]
    alone = tokenizer_files.find(str(tmp_path))
    engine = tokenizers.Tokenizer.from_file(str(path))
    assert alone.encode_batch(lines) == [
        engine.encode(line, add_special_tokens=False).ids for line in lines]
    model = SHARED / "data" / "spm_en" / "30k-clean.model"
    (tmp_path / "spiece.model").write_bytes(model.read_bytes())
    beside = tokenizer_files.find(str(tmp_path))
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
        model_proto()
