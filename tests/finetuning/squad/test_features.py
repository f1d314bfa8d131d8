"""SQuAD: examples and features against the release's, alignment, windows.

`fixtures/squad/features.json.xz` holds the release's outputs: datasets, examples,
_convert_index, and features as hashes per example with a few in full.
"""

import functools
import gzip
import hashlib
import json
import lzma
import random

import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.common import ExampleSet
from albert_tf.finetuning.features import FeatureTable
from albert_tf.finetuning.squad import alignment
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning.squad.dataset import SquadExample, questions_in, to_train
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import FIXTURES, SHARED

MODEL = str(FIXTURES / "spm" / "en4k.model")
SETTINGS = ["train_v1_a", "train_v1_b", "dev_v1_a", "dev_v1_b", "dev_v1_c",
            "train_v2_a", "train_v2_b", "train_v2_c", "dev_v2_a", "dev_v2_b"]
# The release drops the questions of a paragraph of little but blanks.
DROPPED = ("q132", "q133")
WINDOWS = ("max_seq_length", "doc_stride", "max_query_length")


@functools.cache
def golden():
    path = FIXTURES / "squad" / "features.json.xz"
    return json.loads(lzma.decompress(path.read_bytes()))


@functools.cache
def spm(do_lower_case=True):
    return FullTokenizer(spm_model_file=MODEL, do_lower_case=do_lower_case)


def read(name):
    """Examples of one of golden's datasets, such as train_v1."""
    examples = questions_in(golden()["datasets"][name], name)
    return [*map(to_train, examples)] if name.startswith("train") else [*examples]


def featurize(example, tokenizer=None, is_training=True, **sizes):
    return SquadTask(**sizes).featurize(
        example, tokenizer=tokenizer or spm(), is_training=is_training)


def as_released(unique_id, feature, window_index, max_seq_length, is_training):
    """A feature in the form of the release's InputFeatures."""
    length = len(feature["input_ids"])
    assert feature["input_mask"] == [1] * length
    assert feature["paragraph_len"] == [length]
    padding = max_seq_length - length
    first = length - 1 - len(feature["tok_start_to_orig_index"])
    input_ids = feature["input_ids"] + [spm().pad_id] * padding
    return {
        "unique_id": unique_id,
        "example_index": None if is_training else feature["example_index"][0],
        "doc_span_index": window_index,
        "tok_start_to_orig_index": feature["tok_start_to_orig_index"],
        "tok_end_to_orig_index": feature["tok_end_to_orig_index"],
        "token_is_max_context": {
            str(position): bool(value) for position, value
            in enumerate(feature["token_is_max_context"], first)},
        "tokens": spm().convert_ids_to_tokens(input_ids),
        "input_ids": input_ids,
        "input_mask": feature["input_mask"] + [0] * padding,
        "segment_ids": feature["segment_ids"] + [0] * padding,
        "paragraph_len": length,
        "start_position": feature["start_positions"][0] if is_training else None,
        "end_position": feature["end_positions"][0] if is_training else None,
        "is_impossible": bool(feature["is_impossible"][0]),
        "p_mask": feature["p_mask"] + [1] * padding,
    }


@functools.cache
def released_windows(key):
    """In a setting of golden's, each example's windows in the release's form."""
    setting, is_training = golden()["settings"][key], key.startswith("train")
    per_example = [
        [] if example.qas_id in DROPPED else featurize(
            example, spm(setting["do_lower_case"]), is_training,
            **{name: setting[name] for name in WINDOWS})
        for example in read(key[:-2])]
    numbered = enumerate(SquadTask().records(per_example), 1_000_000_000)
    return [[as_released(*next(numbered), window, setting["max_seq_length"], is_training)
             for window in range(len(features))] for features in per_example]


def sha256(value):
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def spans_text(example, feature):
    """Text of the characters from the answer's first piece to its last."""
    first = feature["paragraph_len"][0] - 1 - len(feature["tok_start_to_orig_index"])
    start = feature["tok_start_to_orig_index"][feature["start_positions"][0] - first]
    end = feature["tok_end_to_orig_index"][feature["end_positions"][0] - first]
    return example.paragraph_text[start:end + 1]


def example_of(text, answer=None, question="what?"):
    return SquadExample("q", question, text, answer, answer and text.index(answer))


# --- The release's outputs -------------------------------------------------------

@pytest.mark.parametrize("name", ["train_v1", "train_v2", "dev_v1", "dev_v2"])
def test_examples_equal_the_release(name, tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(golden()["datasets"][name]), encoding="utf-8")
    examples = SquadTask(name.endswith("v2")).read(
        str(path), "train" if name.startswith("train") else "predict").examples
    training = name.startswith("train")
    assert [(*example[:5], bool(training and example.is_impossible))
            for example in examples] == [
        tuple(expected[name] for name in (
            "qas_id", "question_text", "paragraph_text", "orig_answer_text",
            "start_position", "is_impossible"))
        for expected in golden()["examples"][name]]
    assert all(expected["end_position"] is None
               for expected in golden()["examples"][name])


@pytest.mark.parametrize("key", SETTINGS)
def test_features_equal_the_release(key):
    expected = golden()["settings"][key]
    assert all(featurize(example, is_training=False) for example in read(key[:-2])
               if example.qas_id in DROPPED)
    found = [windows for windows in released_windows(key) if windows]
    assert sum(map(len, found)) == expected["n_features"]
    assert list(map(sha256, found)) == expected["sha256_per_example"]


@pytest.mark.shared
@pytest.mark.parametrize("key", SETTINGS)
def test_all_features_equal_the_release_in_full(key):
    path = SHARED / "golden" / "squad" / f"features_{key}.json.gz"
    assert sum(released_windows(key), []) == json.loads(
        gzip.decompress(path.read_bytes()))


def test_conversion_of_unmatched_places_equals_the_release():
    for case in golden()["convert_index"]:
        index = np.array([-1 if i is None else i for i in case["index"]])
        starts, ends = alignment.filled(index, case["m"])
        assert (starts if case["is_start"] else ends)[case["pos"]] == case["out"], case


# --- Matching characters ---------------------------------------------------------

def random_pairs(count):
    """Characters and a text much like them, of few letters so that ties abound."""
    chooser = random.Random(5)
    for _ in range(count):
        letters = "ab c"[:chooser.randint(1, 4)]
        text = "".join(chooser.choices(letters, k=chooser.randint(1, 25)))
        chars = [char for char in text if chooser.random() > 0.05]
        for extra in chooser.choices(["", "zz", "q", *letters],
                                     k=chooser.randrange(5)):
            chars.insert(chooser.randrange(len(chars) + 1), extra)
        yield chars or ["a"], " " + text


def test_the_greedy_match_is_the_table_s_wherever_it_applies():
    applied = 0
    for chars, text in random_pairs(1000):
        band = abs(len(chars) - len(text)) + alignment.BAND_MARGIN
        greedy = alignment.match_greedily(chars, text, band)
        if greedy is not None:
            applied += 1
            matched, matches = alignment.match_by_table(chars, text, band)
            assert greedy.tolist() == matches.tolist(), (chars, text)
            assert matched > alignment.MIN_MATCHED_SHARE * len(chars)
    assert applied > 300


LETTERS = "".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxy", k=60))


@pytest.mark.parametrize("chars, text", [
    ("?" * 8 + LETTERS, LETTERS + "z" * 8), ("?" * 10 + LETTERS, LETTERS + "z" * 6),
    (LETTERS + "?" * 5, "z" * 5 + LETTERS)])
def test_a_shift_beyond_the_band_is_found_in_one_of_twice_its_width(chars, text):
    band = abs(len(chars) - len(text)) + alignment.BAND_MARGIN
    narrow, _ = alignment.match_by_table(chars, text, band)
    assert narrow < 0.8 * len(chars)
    assert alignment.match_greedily(chars, text, band) is None
    matches = alignment.match_characters(chars, text)
    assert "".join(text[i] for i in matches if i >= 0) == LETTERS


@pytest.mark.parametrize("unmatched, kept", [(1, True), (2, True), (3, False)])
def test_a_match_of_less_than_four_fifths_is_none(unmatched, kept):
    text = "abcdefghi"[:10 - unmatched]
    matches = alignment.match_characters([*text, *"?" * unmatched], text)
    assert (matches is not None) == kept


# --- Alignment of paragraphs -----------------------------------------------------

@pytest.mark.parametrize("text, answer", [
    ("The café of Zoë is old.", "Zoë"),
    ("Some  text with\ttwo   blanks here and there, and\n\nit ends. ", "two   blanks"),
    ("About ½ of the ﬁsh… were sold in 1999, 2001, and 2003.", "1999, 2001,"),
    ("3,418,250, people", "3,418,250"),
])
def test_answers_are_found_again_from_their_positions(text, answer):
    example = example_of(text, answer)
    feature, = featurize(example)
    assert spans_text(example, feature).strip() == answer


NFD = ("Thu\u031b vie\u0323\u0302n nho\u0309 na\u0306\u0300m be\u0302n "
       "bo\u031b\u0300 so\u0302ng.")


@pytest.mark.parametrize("text, answers", [
    ("작은 도서관은 강가에 있으며 1921년에 김안나가 세웠다.", ["도서관은", "강가에", "세웠다."]),
    ("تَقَعُ المَكْتَبَةُ الصَّغِيرَةُ عَلَى ضَفَّةِ النَّهْرِ",
     ["ضَفَّةِ النَّهْرِ", "الصَّغِيرَةُ"]),
    ("הַסִּפְרִיָּה הַקְּטַנָּה עוֹמֶדֶת עַל גְּדַת הַנָּהָר",
     ["הַקְּטַנָּה", "גְּדַת הַנָּהָר"]),
    (NFD, ["vie\u0323\u0302n nho\u0309", "so\u0302ng."]),
    ("½ ﬁ ① Ⅷ ㎏ ⅔", ["ﬁ ①", "Ⅷ", "⅔"]),
    ("ห้องสมุดเล็ก ตั้งอยู่ ริมแม่น้ำ", ["ห้องสมุดเล็ก", "ริมแม่น้ำ"])])
def test_no_language_is_dropped_because_its_characters_change(text, answers):
    """The release drops these, as their characters match no single one of the pieces'.
    """
    chars = alignment.comparable_characters(text, True)
    assert alignment.match_characters(
        chars, "".join(spm().tokenize(spm().prepare(text)))) is None
    for answer in answers:
        example = example_of(text, answer)
        feature, = featurize(example)
        assert spans_text(example, feature) == answer
        assert featurize(example, is_training=False)


def test_long_passages_do_not_take_the_square_of_their_length(monkeypatch):
    """Neither if too few characters can match, nor if a table would be too large."""
    monkeypatch.setattr(alignment, "match_by_table", None)
    for text in (NFD * 999, "The\u0301 library  is old. " * 1999):
        found = alignment.align_paragraph.__wrapped__(text, spm())
        assert found.ends[-1] == len(text.rstrip()) - 1


def test_a_paragraph_whose_offsets_are_not_known_is_dropped_as_before(monkeypatch):
    def locate(self, text):
        raise InputError("a model with byte fallback")

    monkeypatch.setattr(type(spm()), "tokenize_with_offsets", locate)
    alignment.align_paragraph.cache_clear()
    assert featurize(example_of("작은 도서관")) == []


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u0301", "\u200b"])
@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_a_paragraph_without_pieces_has_no_features(tmp_path, kind, text):
    tokenizer = spm() if kind == "sentencepiece" else chinese(tmp_path)
    assert featurize(example_of(text), tokenizer, is_training=False) == []


def test_an_answer_that_no_piece_stands_for_has_no_features_in_training():
    example = example_of("the old\u0301\u0302\u0301 clock", "\u0302")
    assert featurize(example, is_training=False) and featurize(example) == []


# --- Windows ---------------------------------------------------------------------

def test_windows_cover_the_paragraph_and_mark_each_piece_s_best_one():
    example = example_of("one two three four five six seven eight nine ten " * 3)
    windows = featurize(example, is_training=False, max_seq_length=24, doc_stride=5,
                        max_query_length=8)
    assert len(windows) > 3
    best = [np.array(w["tok_start_to_orig_index"])[
        np.array(w["token_is_max_context"], bool)] for w in windows]
    whole, = featurize(example, is_training=False)
    # Each piece is in just one of them; only the first window has the first piece.
    assert sorted(np.concatenate(best)) == whole["tok_start_to_orig_index"]
    assert windows[0]["token_is_max_context"][0] == 1
    assert windows[-1]["token_is_max_context"][-1] == 1
    for window in windows:
        assert len(window["input_ids"]) <= 24
        assert len({len(window[name]) for name in (
            "input_ids", "input_mask", "segment_ids", "p_mask")}) == 1


def test_in_training_windows_without_the_whole_answer_are_impossible():
    text = "zero one two three four five six seven eight nine ten eleven twelve"
    example = example_of(text, "six")
    windows = featurize(example, max_seq_length=16, doc_stride=6, max_query_length=4)
    possible = [w for w in windows if not w["is_impossible"][0]]
    assert 0 < len(possible) < len(windows)
    for window in possible:
        assert spans_text(example, window).strip() == "six"
    for window in windows:
        if window["is_impossible"][0]:
            assert window["start_positions"] == window["end_positions"] == [0]


# --- Chinese, by WordPiece -------------------------------------------------------

CHINESE = ("王小明于一九八七年在杭州开了一家名为“Bluebird Café”的书店，"
           "后来搬到西湖边。书店有３层楼，藏书12,500册。")
CHINESE_ANSWERS = ["一九八七年", "杭州", "Bluebird Café", "西湖边", "３层楼", "12,500册"]


def chinese(directory):
    path = directory / "zh_vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "blue", "##bird", "ca",
             "##fe", "12", "500", "##0", "?", ",", "？"]
    words += sorted({char for char in CHINESE if ord(char) > 0x2000} - set(words))
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return FullTokenizer(str(path))


def test_chinese_answers_are_found_again_by_wordpiece(tmp_path):
    tokenizer = chinese(tmp_path)
    for answer in CHINESE_ANSWERS:
        example = example_of(CHINESE, answer, "书店在哪里？")
        windows = featurize(example, tokenizer, max_seq_length=40, doc_stride=8,
                            max_query_length=8)
        found = [spans_text(example, window) for window in windows
                 if not window["is_impossible"][0]]
        assert found and set(found) == {answer}
    assert len(windows) > 1


@pytest.mark.parametrize("sizes, message", [
    ((20, 8, 17), "--max_seq_length=20.* 21"), ((384, 0, 64), "--doc_stride=0"),
    ((384, 128, 0), "--max_query_length=0")])
def test_windows_without_room_are_told(sizes, message):
    with pytest.raises(InputError, match=message):
        SquadTask(False, *sizes)
    SquadTask(False, 21, 1, 17)


# --- Real data -------------------------------------------------------------------

@pytest.mark.shared
@pytest.mark.long
@pytest.mark.parametrize("name, version_2, split, num_examples, num_features", [
    ("dev-v1.1.json", False, "predict", 10570, 10866),
    ("v2.0-16-articles.json", True, "predict", 6078, 6398),
    ("v2.0-train-11-articles.json", True, "train", 5147, 5269)])
def test_real_data_loses_no_example_and_no_answer(
        name, version_2, split, num_examples, num_features):
    tokenizer = FullTokenizer(
        spm_model_file=str(SHARED / "data" / "spm_en" / "30k-clean.model"))
    examples = SquadTask(version_2).read(
        str(SHARED / "data" / "squad" / name), split).examples
    per_example = [featurize(example, tokenizer, split == "train", version_2=version_2)
                   for example in examples]
    assert len(examples) == num_examples and all(per_example)
    assert sum(map(len, per_example)) == num_features
    for example, windows in zip(examples, per_example):
        answered = [w for w in windows if not w["is_impossible"][0]]
        assert answered or example.is_impossible or split != "train"


def test_questions_that_are_cut_are_counted(caplog):
    """Each once, in however many windows its passage is read."""
    asked = SquadTask(False, max_seq_length=24, max_query_length=6, doc_stride=8)
    examples = [SquadExample(str(i), text, "It was made in 1999 by them. " * 5)
                for i, text in enumerate(["Who?", "What was the first of them made of?"])]
    table = FeatureTable.from_values(
        asked.spec(AlbertConfig(vocab_size=4000)), asked.records([
            asked.featurize(each, tokenizer=spm(), is_training=False)
            for each in examples]))
    assert table.num_rows > 4
    asked.check_features(
        {"dev": ExampleSet(examples, ("dev.json",))}, {"dev": table}, None)
    assert [record.getMessage() for record in caplog.records] == [
        "--max_query_length=6, dev: 1 of 2 questions fill all 6 tokens that the model "
        "reads; what is longer is cut."]
