"""Text in, answers out: sequences, windows and answers are those of Python."""

import itertools
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.errors import InputError
from albert_tf.finetuning.race import task as race
from albert_tf.finetuning.squad import task as squad
from albert_tf.finetuning.tagging import task as tagging
from albert_tf.finetuning.classification.task import ClassificationTask, Example
from albert_tf.finetuning.squad.dataset import SquadExample
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.serving import export
from albert_tf.finetuning.race import text as text_choices
from albert_tf.finetuning.squad import text as text_spans
from albert_tf.finetuning.tagging import text as text_tags
from albert_tf.finetuning import text as text_tasks
from albert_tf.tokenization import cleaning
from tests import models, tiny_run
from tests.helpers import ask_export, load_export, tokenizer

pytest.importorskip("tensorflow_text")

TEXTS = [
    "The whole  passage was written in 1,984, by him. ", "Short.", "", "a é\u0323 ½ ☃☃",
    "Of three hundred people _ came, and then the others left them _ again." * 3,
    "what is it", "ΑΣ 好吗 zzz eee"]
PASSAGES = ["The café of Zoë opened in 1,984, and  closed in 2003. " * 4, "", "Yes.",
            "한국 ☃☃ 好吗", " \n ", "One two three four five six seven eight nine ten."]
QUESTIONS = ["When did the café close, in which year?", "Who?", "", "What is it",
             "a", "How many " * 9]


KINDS = pytest.mark.parametrize("kind", ["spm", "wordpiece"])


def check_rows(found, rows):
    """Rows of a padded batch are those of features without padding."""
    for name in ("input_ids", "input_mask", "segment_ids"):
        values = found[name].numpy()
        assert len(values) == len(rows)
        for row, wanted in zip(values, rows):
            assert row[:len(wanted[name])].tolist() == list(wanted[name])
            assert name == "input_ids" or not row[len(wanted[name]):].any()


@pytest.mark.long
@KINDS
@pytest.mark.parametrize("length", [8, 13, 64])
def test_texts_and_pairs_are_cut_as_in_training(kind, length):
    task = ClassificationTask("t", ("0", "1"), (), "", None, max_seq_length=length)
    for examples in [*itertools.product(TEXTS, TEXTS)], [(text,) for text in TEXTS]:
        columns = dict(zip(("text", "text_pair"), map(tf.constant, zip(*examples))))
        made = text_tasks.Texts(tokenizer(kind), length, pairs=len(columns) > 1)
        check_rows(made.tokenized(columns), [task.featurize(
            Example("", *texts), tokenizer=tokenizer(kind))[0]
            for texts in examples])


@pytest.mark.long
@KINDS
def test_choices_are_those_of_race(kind):
    task = race.RaceTask(max_seq_length=30, max_qa_length=9)
    options = ["one", "", "two of them and more", "_"]
    found = text_choices.Choices(tokenizer(kind), 30, task).tokenized({
        "passage": tf.constant(TEXTS), "question": tf.constant(TEXTS[::-1]),
        "options": tf.constant([options] * len(TEXTS))})
    wanted = [task.featurize(race.RaceExample(
        "", 0, "", passage, question, tuple(options), None, ""),
        tokenizer=tokenizer(kind))[0] for passage, question in zip(TEXTS, TEXTS[::-1])]
    for i, row in enumerate(wanted):
        width = len(row["input_ids"][0])
        for name in ("input_ids", "input_mask", "segment_ids"):
            assert found[name][i, :, :width].numpy().tolist() == row[name]
        assert not found["input_mask"][i, :, width:].numpy().any()


def make(head, vocab_size, **options):
    model = head(tiny_run.config(vocab_size=vocab_size, max_position_embeddings=40),
                 **options)
    load_tf1_tensors(model, tiny_run.weights_of(model))
    return model


@pytest.mark.long
@KINDS
@pytest.mark.parametrize("split", cleaning.WORD_SPLITS)
@pytest.mark.parametrize("length, stride", [(8, 2), (40, 64)])
def test_tags_and_entities_are_those_of_the_task(kind, split, length, stride):
    labels = ("O", *(f"{prefix}-{type}" for type in "XY" for prefix in "BIES"))
    task = tagging.TaggingTask(labels, "iobes", Reading(split_words=split),
                               max_seq_length=length, doc_stride=stride)
    made = text_tags.Tags(tokenizer(kind), length, task)
    texts = [*TEXTS, " \n", "İİ 's a\u0301. \0 ☃\u3000b", "好吗 " * 9, "x" * 300 + " y"]
    inputs = {"text": tf.constant(texts)}
    features, context = made.prepared(inputs)
    found = {name: value.numpy() for name, value in made.tokenized(inputs).items()}
    scores = np.random.default_rng(1).random(
        [*features["input_ids"].shape, len(labels)], np.float32)
    answers = {name: value.numpy() for name, value in made.answers(
        inputs, context, {"probabilities": tf.constant(scores)}).items()}
    assert not answers["words"][2].any() and not answers["entity_end"][2].any()
    for i, text in enumerate(texts):
        if not text.strip():
            assert i not in found["text"]
            continue
        example, own = task.reading.sentence(text), np.flatnonzero(found["text"] == i)
        windows = task.featurize(example, tokenizer=tokenizer(kind))
        check_rows({name: tf.constant(values[own]) for name, values in found.items()},
                   windows)
        for row, window in zip(own, windows):
            word = np.full(len(found["word"][row]), -1)
            word[window["word_place"]] = window["word_index"]
            assert found["word"][row].tolist() == word.tolist()
        [tagged] = task.tagged(
            [example], {"tags": scores[own].argmax(-1),
                        "probabilities": scores[own].max(-1)},
            {"example_index": [0] * len(own), **{
                name: [window[name] for window in windows]
                for name in ("word_index", "word_place")}})
        answer = task.answer(example, tagged)
        for name in ("words", "tags"):
            assert [value.decode() for value in answers[name][i] if value] == (
                answer[name])
        count = np.count_nonzero(answers["entity_end"][i])
        assert count == len(answer["entities"])
        for name in ("type", "text", "start", "end", "score"):
            given = [value.decode() if isinstance(value, bytes) else value
                     for value in answers[f"entity_{name}"][i][:count]]
            assert given == pytest.approx(
                [entity[name] for entity in answer["entities"]], abs=1e-5) if (
                name == "score") else given == [
                    entity[name] for entity in answer["entities"]]


@pytest.mark.long
def test_an_export_of_parts_of_speech_names_no_entities(tmp_path):
    made, labels = tokenizer("spm"), ["NOUN", "VERB", "X"]
    model = make(models.tagger, made.vocab_size, num_labels=3)
    folder = str(tmp_path / "model")
    export.export(model, model.head, folder, labels, text=text_tags.Tags(
        made, 16, tagging.TaggingTask(labels, doc_stride=5)))
    serve = load_export(folder).signatures["serving_default"]
    for texts in (TEXTS, []):
        found = serve(text=tf.constant(texts, tf.string))
        assert set(found) == {"words", "tags"}
        assert found["words"].shape[0] == len(texts)


@pytest.mark.long
@pytest.mark.parametrize("version_2", [False, True])
def test_an_export_answers_questions_as_the_task_does(version_2, tmp_path):
    made, threshold = tokenizer("spm"), 0.0 if version_2 else None
    sizes = dict(max_seq_length=32, doc_stride=7, max_query_length=9)
    task = squad.SquadTask(version_2, **sizes)
    model = make(models.conditional_spans if version_2
                 else models.spans, made.vocab_size)
    folder = str(tmp_path / "written")
    export.export(model, model.head, folder, threshold=threshold, text=text_spans.Spans(
        made, 32, task, threshold))
    shutil.move(folder, tmp_path / "moved")
    signatures = load_export(tmp_path / "moved").signatures
    examples = [SquadExample(str(i), question, passage)
                for i, (question, passage) in enumerate(zip(QUESTIONS, PASSAGES))]
    windows = list(task.records([task.featurize(
        example, tokenizer=made, is_training=False) for example in examples]))
    wanted = task.rank(examples, ask_export(tmp_path / "moved", windows), {
        name: [row[name] for row in windows] for name in windows[0]})
    inputs = {"question": tf.constant(QUESTIONS), "passage": tf.constant(PASSAGES)}
    check_rows(signatures["tokenize"](**inputs), windows)
    found = {name: value.numpy() for name, value in signatures["serving_default"](
        **inputs).items()}
    for i, example in enumerate(examples):
        text, score = wanted.texts[str(i)], wanted.nbest[str(i)][0]
        if version_2:
            assert abs(found["null_odds"][i] - wanted.null_odds[str(i)]) < 1e-4
            text = text * (wanted.null_odds[str(i)] < threshold)
        assert found["answer"][i].decode() == text
        assert example.paragraph_text[found["start"][i]:found["end"][i]] == text
        assert abs(score["start_log_prob"] + score["end_log_prob"]
                   - found["score"][i]) < 1e-4
    none = signatures["serving_default"](**{
        name: tf.constant([], tf.string) for name in inputs})
    assert all(len(value) == 0 for value in none.values())


def test_wrong_sizes():
    with pytest.raises(tf.errors.InvalidArgumentError, match="text and text_pair must"):
        text_tasks.as_many({"text": tf.constant(["a"]), "text_pair": tf.constant(["b"] * 2)})
    with pytest.raises(InputError, match="--max_seq_length=3 leaves no room for text"):
        text_tasks.Texts(tokenizer("wordpiece"), 3)
