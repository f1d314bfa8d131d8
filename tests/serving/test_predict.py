"""Answers in Python: each task's, batches, wrong inputs; predict.py."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints.formats import convert
from albert_tf.errors import InputError
from albert_tf.finetuning.answer import by_label
from albert_tf.finetuning.classification import glue
from albert_tf.finetuning.classification.task import Example
from albert_tf.finetuning.classification.custom import OwnData, build_task
from albert_tf.serving.options import Ask
from tests import row_tables
from tests.commands import run_commands
from tests.serving import tiny_models

pytestmark = pytest.mark.usefixtures("eager")  # In graphs: test_http, test_portable.
PASSAGE = "The first text of them was made in 1999,  and it is long. " * 9

WHOLE = "of " * 62  # fills a sequence


def softmax(scores):
    scores = np.exp(scores - np.max(scores))
    return scores / scores.sum()


def test_labels_are_those_of_training(tiny):
    asked = tiny("classes")
    texts, pairs = ["It is.", PASSAGE, "Größe"], ["The second one", "", PASSAGE]
    task = dataclasses.replace(
        build_task(OwnData(), ["bad", "good", "好"]), max_seq_length=64)
    found = asked.predict(texts, pairs)
    for text, pair, answer in zip(texts, pairs, found):
        [row] = task.featurize(Example("", text, pair), tokenizer=asked.tokenizer)
        row.pop("label_ids")
        expected = softmax(asked.model(
            {name: [values] for name, values in row.items()})["logits"][0].numpy())
        assert tuple(answer["probabilities"]) == task.labels
        assert answer["probabilities"] == pytest.approx(
            dict(zip(task.labels, expected)), abs=1e-5)
        assert answer["label"] == task.labels[expected.argmax()]
        assert answer["probability"] == max(answer["probabilities"].values())
        json.dumps(answer, allow_nan=False)


def test_lines_of_words_and_tags_are_no_texts(tiny):
    with pytest.raises(InputError, match="most texts end in a tag .*, such as B-X"):
        tiny("tags").predict(["It B-X", "is O", "", "the NN O"])
    assert tiny("tags").predict(["It is O", "It is."])[0]["words"] == ["It", "is", "O"]


def test_probabilities_as_a_list(tiny):
    """In the order of the labels; other tasks have none."""
    for kind, text in (("classes", "It is."), ("several", "It is."), ("choices", {
            "passage": PASSAGE, "question": "Which _?", "options": ["it", "a"]})):
        named = tiny(kind).predict(text)
        listed = tiny(kind).predict(text, probability_list=True)
        assert listed == {
            **named, "probabilities": list(named["probabilities"].values())}
    tags = tiny("tags").predict("It is.", probability_list=True)
    assert tags == tiny("tags").predict("It is.", windows=True)


def test_labels_of_which_a_text_has_any_number(tmp_path, tiny):
    asked = tiny("several")
    texts = ["It is.", PASSAGE, "Größe"]
    found = asked.predict(texts)
    logits = asked.model(asked.tokenizer(texts, max_length=64))["logits"].numpy()
    expected = 1 / (1 + np.exp(-logits))
    assert len({tuple(answer["labels"]) for answer in found}) > 1 or (
        np.ptp(expected) > 0.01)
    for answer, row in zip(found, expected):
        assert set(answer) == {"labels", "probabilities"}
        assert answer["probabilities"] == pytest.approx(
            dict(zip(asked.labels, row)), abs=1e-5)
        assert answer["labels"] == [
            name for name, value in zip(asked.labels, row) if value >= 0.5]
        assert asked.predict("x", label_threshold=0.0)["labels"] == list(asked.labels)
    with pytest.raises(InputError, match="label_threshold=1.5: give a number"):
        asked.predict("x", label_threshold=1.5)
    with pytest.raises(InputError, match="label_threshold is for models that classify"):
        tiny("classes").predict("x", label_threshold=0.5)
    # Another threshold, as the model's folder has it.
    threshold = float(np.sort(expected.ravel())[4:6].mean())  # None is so near to it.
    folder = tiny_models.write(tmp_path / "flag", "several", label_threshold=threshold)
    for answer, row in zip(albert_tf.load(folder).predict(texts), expected):
        assert answer["labels"] == [
            name for name, value in zip(asked.labels, row) if value >= threshold]


def test_what_outputs_are_is_read_from_a_config(tmp_path, folder):
    """Of a classifier of Hugging Face whose outputs are 4, 3 and -1."""
    convert(folder, str(tmp_path / "hf"), "hf")
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    for problem, expected in (
            ("multi_label_classification", {
                "labels": ["bad", "good"], "probabilities": [0.9820, 0.9526, 0.2689]}),
            (None, {"label": "bad", "probability": 0.7275,
                    "probabilities": [0.7275, 0.2676, 0.0049]}),
            ("regression", {"scores": [4.0, 3.0, -1.0]})):
        path.write_text(json.dumps({**config, "problem_type": problem}))
        loaded = albert_tf.load(tmp_path / "hf")
        layer = loaded.model.head_layers["classification"]["output_layer"]
        layer.output_weights.assign(0 * layer.output_weights)
        layer.output_bias.assign([4.0, 3.0, -1.0])
        found = loaded.predict("It is.", probability_list=True)
        assert found == {name: value if name[:5] == "label" else pytest.approx(
            value, abs=1e-4) for name, value in expected.items()}
    path.write_text(json.dumps({**config, "problem_type": "ranking"}))
    with pytest.raises(InputError, match="hf/config.json: problem_type='ranking'"):
        albert_tf.load(tmp_path / "hf")


def test_a_model_answers_for_what_it_was_trained_on(tmp_path):
    single, pairs = (albert_tf.load(tiny_models.write(
        tmp_path / f"{column}", "classes", text_b_column=column))
        for column in (None, "second"))
    for given in ("It is", {"text": "It is"}):
        assert "label" in single.predict(given)
        with pytest.raises(InputError, match="input 1: 'text_pair' is missing"):
            pairs.predict([given])
    for given, message in ((("It is", "long"), "input 1: there are 2 texts"),
                           ({"text": "It is", "text_pair": "long"}, "no input 'text_pair'")):
        with pytest.raises(InputError, match=message):
            single.predict([given])
        assert "label" in pairs.predict([given])[0]
    with pytest.raises(InputError, match="'text_pair' is empty"):
        pairs.predict("x", "")


def test_whether_a_task_has_pairs():
    """Of a model from elsewhere nothing is known."""
    assert [glue.takes_pairs({"task": task} if task else {})
            for task in ("sst-2", "mrpc", "")] == [False, True, None]


def test_an_answer_does_not_depend_on_its_batch(tiny):
    texts = [("text " * n).strip() for n in range(1, 40)]
    for kind in ("classes", "number", "encoder"):
        together = tiny(kind).predict(texts, batch_size=7, probability_list=True)
        for i in (0, 20, 38):
            alone = tiny(kind).predict(texts[i], probability_list=True)
            assert alone.keys() == together[i].keys()
            for name, value in alone.items():
                if name != "label":
                    np.testing.assert_allclose(value, together[i][name], atol=1e-5)
    assert tiny("number").predict("x").keys() == {"score"}


@pytest.mark.long
def test_masks_order_and_vectors_of_a_pretrained_model(tiny):
    asked = tiny("pretrained")
    assert list(asked.tasks()) == ["fill-mask", "order", "embed"]
    masks, order, vectors = asked.predict(
        ["The [MASK] of[MASK].", ("It is", "long"), "plain"], top_k=3)
    assert [len(mask) for mask in masks["masks"]] == [3, 3]
    assert masks["masks"][0][0]["probability"] > masks["masks"][0][1]["probability"]
    assert order["label"] in ("in order", "swapped")
    assert list(order["probabilities"]) == ["in order", "swapped"]
    assert sum(order["probabilities"].values()) == pytest.approx(1)
    out = asked.model(asked.tokenizer("plain"))
    np.testing.assert_allclose(vectors["pooled"], out["pooled_output"][0], atol=1e-5)
    np.testing.assert_allclose(
        vectors["mean"], out["sequence_output"][0].numpy().mean(axis=0), atol=1e-5)
    # A mask hides one piece: the text around it is that of training.
    tokenizer = asked.tokenizer
    [row] = asked.request("the text[MASK] it").sequences
    ids = tokenizer("the text, it")["input_ids"][0].tolist()
    ids[ids.index(tokenizer.vocab[","])] = tokenizer.mask_id
    assert row["input_ids"] == ids
    best = asked.model({"input_ids": [ids], "masked_lm_positions": [
        row["masked_lm_positions"]]})["mlm_logits"][0, 0].numpy()
    [[first, *_]] = asked.predict("the text[MASK] it")["masks"]
    assert first["probability"] == pytest.approx(softmax(best).max(), abs=1e-5)


@pytest.mark.parametrize("kind", ["spans", "spans2"])
def test_answers_are_characters_of_the_passage(tiny, kind):
    asked = tiny(kind)
    assert len(asked.request(("What was made?", PASSAGE)).sequences) > 2
    answer = asked.predict(["What was made?"], [PASSAGE])[0]
    assert answer["answer"] == PASSAGE[answer["start"]:answer["end"]] != ""
    assert ("null_odds" in answer) == (kind == "spans2")
    alone = asked.predict({"question": "What was made?", "passage": PASSAGE})
    assert alone == pytest.approx(answer, abs=1e-5)
    assert asked.predict([("What was made?", PASSAGE)], windows=True) == [answer]
    if kind == "spans2":
        strict = dataclasses.replace(asked, threshold=answer["null_odds"])
        assert strict.predict("What was made?", PASSAGE)["answer"] == ""


def test_one_checkpoint_of_a_folder_has_the_threshold_of_its_model(folder_of, tmp_path):
    folder = shutil.copytree(folder_of("spans2"), tmp_path / "model")
    (folder / "null_threshold.json").write_text('{"null_score_diff_threshold": -1.5}')
    prefix = next(folder.glob("*.index")).with_suffix("")
    assert [albert_tf.load(str(path)).threshold for path in (folder, prefix)] == [
        -1.5, -1.5]


def test_cut_texts_are_counted(tiny, caplog):
    """A text of just 64 tokens is whole; passages are read in windows, but not what
    exceeds the part of the question."""
    texts = ["x", PASSAGE, "It is.", PASSAGE, WHOLE]
    assert len(tiny("classes").request(WHOLE).sequences[0]["input_ids"]) == 64
    tiny("classes").predict(texts)
    tiny("classes").predict(texts[:1])
    tiny("spans").predict(["Who?", "made " * 61], [PASSAGE] * 2)
    tiny("choices").predict({
        "passage": PASSAGE, "question": "Which _?", "options": ["it", "a"]})
    assert re.findall(r"(\d of \d) texts are longer than the (\d+) tokens .*are cut",
                      caplog.text) == [("2 of 5", "64"), ("1 of 2", "60"), ("1 of 1", "64")]


@pytest.mark.parametrize("kind, task, short, long", [
    ("classes", "", WHOLE, WHOLE + " of"),
    ("classes", "", ("It is.", "x"), ("It is.", PASSAGE)),
    ("encoder", "embed", "x", PASSAGE),
    ("pretrained", "fill-mask", "x [MASK]", "x [MASK] " + PASSAGE),
    ("pretrained", "order", ("x", "x"), (PASSAGE, "x")),
    ("tags", "", PASSAGE, None),
    ("spans", "", ("Who?", PASSAGE), ("who " * 70, PASSAGE)),
    ("choices", "", ("x", "Who?", "a", "b"), ("x", "Who?", "a", "b" * 200))])
def test_answers_tell_whether_texts_are_cut(kind, task, short, long, tiny):
    for given, cut in ((short, False), (long, True)):
        if given is not None:
            [answer] = tiny(kind).predict([given], task=task, truncated=True)
            assert answer.pop("truncated") is cut
            [plain] = tiny(kind).predict([given], task=task)
            assert plain == answer


@pytest.mark.parametrize("kind, task", [
    ("classes", ""), ("number", ""), ("classes", "embed")])
def test_windows_read_all_of_a_text(kind, task, tiny):
    """The mean over windows that overlap by half; one window is the old answer."""
    asked = tiny(kind)
    short, long = (asked.predict(text, task=task, windows=True)
                   for text in ("It is.", PASSAGE))
    assert short == asked.predict("It is.", task=task)
    pieces = asked.tokenizer.encode(PASSAGE)
    assert len(pieces) > 100
    windows = [[asked.tokenizer.cls_id, *pieces[at:at + 62], asked.tokenizer.sep_id]
               for at in range(0, len(pieces) - 31, 31)]
    assert [row["input_ids"] for row in asked.request(
        PASSAGE, Ask(task, windows=True)).sequences] == windows
    compute = asked.model.bert if task else asked.model
    rows = [compute({"input_ids": [ids], "input_mask": [[1] * len(ids)],
                     "segment_ids": [[0] * len(ids)]}) for ids in windows]
    if task:
        np.testing.assert_allclose(long["pooled"], np.mean([
            row["pooled_output"][0] for row in rows], axis=0), atol=1e-5)
        return
    logits = np.mean([row["logits"][0] for row in rows], axis=0)
    if kind == "number":
        assert long == {"score": pytest.approx(logits[0], abs=1e-5)}
    else:
        np.testing.assert_allclose(
            [*long["probabilities"].values()], softmax(logits), atol=1e-5)
        assert long["label"] == asked.labels[logits.argmax()]


def test_an_empty_text_has_no_label(tiny):
    asked = tiny("classes")
    found = list(asked.stream(["x", " ", ("\u200b\xad", "x")], keep_errors=True))
    assert "label" in found[0] and found[1:] == [
        {"error": "'text' is empty; give a text."}] * 2
    with pytest.raises(InputError, match="input 1: 'text' is empty"):
        asked.predict([""])
    with pytest.raises(InputError, match="no head for the task 'order'"):
        list(asked.stream(["x"], Ask("order"), keep_errors=True))
    assert asked.predict("", task="embed")["mean"]
    assert "label" in asked.predict("x", "")


def test_choices(tiny):
    values = np.array([0.25, 0.75], np.float32)
    assert by_label(values, ("same", "same")) == {"0: same": 0.25, "1: same": 0.75}
    answer = tiny("choices").predict(
        {"passage": PASSAGE, "question": "Which _?", "options": ["it", "a", "b"]})
    assert list(answer["probabilities"]) == ["A", "B", "C"]
    assert answer["label"] in "ABC"
    assert tiny("choices").predict([(PASSAGE, "Which _?", "it", "a", "b")]) == [answer]


@pytest.mark.parametrize("kind, arguments, options, pattern", [
    ("classes", ([None],), {}, "input 1: the input is None; give"),
    ("classes", (["a", {"txt": "b"}],), {}, "input 2: there is no input 'txt'.*text"),
    ("classes", ([{"text": 5}],), {}, "'text' is 5, not a text"),
    ("classes", ([("a", "b", "c")],), {}, "3 texts, but the model takes text and"),
    ("classes", (["a"], ["b", "c"]), {}, "1 texts, but 2 text_pairs"),
    ("classes", (5,), {}, "5 is neither"),
    ("classes", ("a",), {"task": "order"}, "task 'order'.*are classify, embed"),
    ("classes", ("a",), {"top_k": 0}, "top_k=0: give"),
    ("classes", ("a",), {"batch_size": 0}, "batch_size=0: give"),
    ("pretrained", ("a",), {"task": "fill-mask"}, r"no \[MASK\]"),
    ("pretrained", ("a " * 90 + "[MASK]",), {}, "is after the 64 tokens"),
    ("pretrained", ("a",), {"task": "order"}, "'text_pair' is missing"),
    ("spans", ("a",), {}, "'passage' is missing"),
    ("spans", ("a", " "), {}, "has no text"),
    ("choices", ([("p", "q", "one")],), {}, "'options' is .*list of two or more"),
    ("choices", ([("x", "x")],), {"windows": True},
     "windows: the task choose cannot average .*; leave it out."),
    ("pretrained", ([("x", "x")],), {"task": "order", "windows": True},
     "windows: the task order cannot average"),
])
def test_wrong_inputs_are_refused_in_a_sentence(tiny, kind, arguments, options,
                                                pattern):
    with pytest.raises(InputError, match=pattern) as error:
        tiny(kind).predict(*arguments, **options)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module", name="results")
def _results(folder_of, tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    (data / "in.jsonl").write_text(
        '{"text": "It is."}\n{"id": 8, "txt": "x"}\nno\n[1]\n{"text": "One"}\n')
    (data / "reviews.csv").write_text(
        'key,review,stars\na,"It is.",5\n\nb,,1\nc,"One, or\ntwo",3\nd,Fine\n')
    reviews = tiny_models.write(
        data / "reviews", "classes", text_column="review", text_b_column=None,
        id_column="key", header=True, delimiter=None)
    (data / "no_key.csv").write_text("review\nFine\n")
    row_tables.write(data / "all.parquet", row_tables.table({
        "question": ["Who?"], "passage": [PASSAGE], "text": ["It"], "title": ["x"]}))
    unnamed = tiny_models.write(data / "unnamed", "several")
    task = json.loads((data / "unnamed" / "task.json").read_text())
    (data / "unnamed" / "task.json").write_text(json.dumps(
        {**task, "labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}))
    bare = shutil.copytree(folder_of("pretrained"), data / "bare")
    (data / "bare" / tiny_models.SPM.name).unlink()
    commands = {name: [f"--model={model}", f"--output_file={data}/{name}.jsonl", *words]
                for name, model, *words in (
        ("bad", folder_of("classes"), f"--input_file={data}/in.jsonl"),
        ("table", reviews, f"--input_file={data}/reviews.csv"),
        ("no key", reviews, f"--input_file={data}/no_key.csv"),
        ("columns", folder_of("spans"), f"--input_file={data}/all.parquet"),
        ("labels", unnamed, "--labels=late,dear,好", "It is.", "--label_threshold=0"),
        ("vocabulary", bare, f"--spm_model_file={tiny_models.SPM}", "It is."),
        ("nothing", bare),
        ("input", bare, f"--input_file={data}/in.jsonl",
         f"--output_file={data}/bare/albert_config.json"))}
    with run_commands("predict", commands, light={"nothing", "input"}) as results:
        yield results, data


def answers_in(path):
    return list(map(json.loads, path.read_text().splitlines()))


def assert_same(answers, expected):
    for answer, right in zip(answers, expected, strict=True):
        assert [answer.get(name) for name in ("label", "labels")] == [
            right.get(name) for name in ("label", "labels")]
        assert answer["probabilities"] == pytest.approx(right["probabilities"], abs=1e-5)


@pytest.mark.long
def test_a_line_without_an_answer_leaves_the_others(results, tiny):
    """It gets an error with its line, and the exit status tells."""
    results, data = results
    results.refused("bad", "in.jsonl, line 2: there is no input 'txt'", loaded=True)
    assert "3 of 5 inputs have an `error`" in results["bad"]["stderr"]
    answers = answers_in(data / "bad.jsonl")
    assert_same(answers[::4], tiny("classes").predict(["It is.", "One"]))
    assert [(each.get("id"), each["line"]) for each in answers[1:4]] == [
        (8, 2), (None, 3), (None, 4)]
    assert ["not JSON" in each["error"] for each in answers[1:4]] == [False, True, False]


@pytest.mark.long
def test_a_table_is_read_by_the_columns_of_training(results, tiny):
    results, data = results
    results.refused("table", "2 of 4 inputs have an `error` instead of an answer.* line 4: "
                    "the text of column 'review' is empty", loaded=True)
    first, empty, third, narrow = answers_in(data / "table.jsonl")
    assert_same((first, third), tiny("classes").predict(["It is.", "One, or\ntwo"]))
    assert [first["id"], third["id"], empty["line"], narrow["line"]] == ["a", "c", 4, 7]
    # A file without the ids of training is answered.
    results.ok("no key")
    assert [each["label"] for each in answers_in(data / "no key.jsonl")]
    # Parquet may have columns for other tasks.
    results.ok("columns")
    [found], [wanted] = answers_in(data / "columns.jsonl"), tiny("spans").predict(
        ["Who?"], [PASSAGE])
    assert found["answer"] == wanted["answer"]


@pytest.mark.long
def test_what_is_given_beside_the_model(results, tiny):
    results, data = results
    results.ok("labels")
    found = answers_in(data / "labels.jsonl")
    assert_same(found, [tiny("several").predict("It is.", label_threshold=0.0)])
    assert found[0]["labels"] == ["late", "dear", "好"]
    results.ok("vocabulary")
    assert "mean" in answers_in(data / "vocabulary.jsonl")[0]
    results.refused("nothing", "give texts on the command line")
    results.refused("input", "albert_config.json exists already")
