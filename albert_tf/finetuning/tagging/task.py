"""Tagging words: names, parts of speech. The first token of a word has its tag.

    words      Angela   Merkel       speaks
    tokens    ▁angela  ▁mer  kel    ▁speaks        each word is tokenized by itself
    label_ids    1       2    0        3           0: no label, except in training with
                                                   label_all_tokens: 1 2 2 3

`readers` reads files, and `scoring` finds entities.
"""

import collections
import dataclasses
import json
from typing import Any, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import labels as label_names
from albert_tf.checkpoints.checkpoint import head_of, some
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.command import Command
from albert_tf.finetuning.common import (
    ExampleSet, Outputs, line_note, read_shards, write_files)
from albert_tf.finetuning.tagging import scoring
from albert_tf.finetuning.tagging.readers import Reading, Sentence, Tagged, with_tags
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.options import given, option
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.sequences import (
    NUM_SPECIAL_SINGLE, windows_of)
from albert_tf.tokenization.tokenizer import FullTokenizer


@dataclasses.dataclass(frozen=True)
class TaggingTask(FineTuningTask):
    """The tagging task, with the options of reading, windows and metrics.

        task = build_task("train.conll")
        examples = task.read("dev.conll", "dev").examples
        windows = task.featurize(examples[0], tokenizer=tokenizer)
    """

    labels: tuple[str, ...]  # The tag of each class id.
    scheme: str = "none"  # How tags mark entities; one of scoring.SCHEMES.
    reading: Reading = Reading()
    max_seq_length: int = 128
    doc_stride: int = option(
        64, "Distance between the starts of consecutive windows of a long sentence, in "
        "tokens.", least=1, kept=True)
    label_all_tokens: bool = option(
        False, "Train all tokens of a word, not only the first (after B-PER: I-PER). For "
        "models that go to Hugging Face's clients, which tag token by token.", kept=True)
    test_tags: Optional[bool] = option(
        None, "--test_file has tags, and predictions are scored against them; default: "
        "true if the file has a column or field for tags.")
    main_metric: str = ""  # "": the first.

    name = "tagging"
    in_windows = True
    texts = ("words",)

    def __post_init__(self):
        for label in self.labels:
            scoring.check_tag(label, self.scheme, "--labels")
            more = scoring.continued(label, self.scheme)
            if self.label_all_tokens and more not in self.labels:
                raise InputError(
                    f"--label_all_tokens: the tags lack {more}, that of the further "
                    f"tokens of a word with {label}; add it to --labels.")
        read = {scoring.parse(label) if self.scheme != "none" else label
                for label in self.labels}
        if len(read) < max(2, len(self.labels)):
            raise InputError(f"the tags are: {', '.join(self.labels) or 'none'}; a model "
                             "needs at least two, each once and in one spelling. Check "
                             "--labels or the training file.")
        if not self.main_metric:
            object.__setattr__(self, "main_metric", self.metric_names[0])

    @property
    def metric_names(self) -> Sequence[str]:
        return ("accuracy",) if self.scheme == "none" else (
            "f1", "precision", "recall", "accuracy")

    # ---- data and features -------------------------------------------------

    def read(self, where: str, split: str) -> ExampleSet:
        return read_shards(where, f"--{split}_file",
                           lambda path, first: self._read_file(path, split))

    def _read_file(self, where: str, split: str) -> ExampleSet:
        sentences, found = self.reading.read(
            where, self.scheme, split != "test" or self.test_tags)
        in_entities, counts = self.scheme != "none", collections.Counter()
        advice = ", or --notest_tags for a file without tags" * (split == "test")
        labels = {scoring.parse(label): label for label in self.labels if in_entities}
        known, bare, unknown, misplaced = {*self.labels}, [], [], []
        for index, sentence in enumerate(sentences):
            if sentence.tags is None:
                bare += sentence.words if sentence.lines else [sentence.text]
                continue
            # Tags are spelled as the labels are.
            tags = tuple(labels.get(scoring.parse(tag), tag) for tag in sentence.tags)
            sentences[index] = sentence._replace(tags=tags)
            counts.update(tags)
            for place, tag in enumerate(tags):
                if tag not in known:
                    scoring.check_tag(tag, self.scheme, sentence.where(place), advice)
                    unknown.append(sentence.numbers[place])
            if in_entities:
                misplaced += [sentence.numbers[place]
                              for place in scoring.misplaced(tags, self.scheme)]
        if tag := scoring.tag_at_ends(bare, self.labels):
            raise InputError(
                f"{where}: most words have a tag of the model, such as {tag}, but not in "
                "a column or field of its own. Columns are separated by tabs or blanks; "
                "an object has 'words' and 'tags' (docs/TAGGING.md#files).")
        names = sorted({*counts} - known)
        found[f"have tags that the model does not know ({some(names, 5)}); they "
              + ("are not trained on" if split == "train" else "count as wrong")] = unknown
        found[f"have tags that {self.scheme} does not allow there; they are read as "
              "conlleval reads them"] = misplaced
        notes = tuple(note for what, numbers in found.items()
                      for note in line_note(where, numbers, what))
        words = sum(len(sentence.words) for sentence in sentences)
        logging.info("%s: %d sentences with %d words; the scheme of tags is %s: %s.",
                     split, len(sentences), words, self.scheme, label_names.counted(
                         [*self.labels, *names], counts.elements()))
        return ExampleSet(sentences, (where,), notes)

    def spec(self, config):
        """Returns the specification of a sentence, or of a window of it.

        `label_ids` are, at the tokens that are trained, the label + 1; they are 0 at
        others and for unknown labels. The features that are not parsed say which words
        of which example have their tag in this window, and at which positions.
        """
        return FeatureSpec((
            *model_inputs((None,), config.vocab_size, config.type_vocab_size),
            Feature("label_ids", "int64", (None,), limit=len(self.labels) + 1,
                    limited_by="num_labels"),
            Feature("example_index", "int64", (1,), parsed=False),
            *(Feature(name, "int64", (None,), parsed=False)
              for name in ("word_index", "word_place"))))

    def featurize(self, example: Sentence, *, tokenizer: FullTokenizer,
                  is_training: bool = False) -> list[dict[str, list[int]]]:
        """Computes the windows of a sentence, with labels of first or of all tokens.

        Each word is tokenized by itself; words that become empty after cleaning are
        replaced by [UNK]. A word's label, and its entry in word_index and word_place,
        are only in the window with the most context for its first token. Windows
        without such words are left out.
        """
        pieces, of_pieces, word_of = [], [], {}  # of_pieces: each token's label
        ids = {label: i for i, label in enumerate(self.labels, 1)}
        for word, ids_of_word in enumerate(tokenizer.encode_batch(example.words)):
            ids_of_word = ids_of_word or [tokenizer.unk_id]
            word_of[len(pieces)] = word
            tag = example.tags[word] if example.tags else ""
            more = scoring.continued(tag, self.scheme) if (
                is_training and self.label_all_tokens) else ""
            pieces += ids_of_word
            of_pieces += [ids.get(tag, 0)] + [ids.get(more, 0)] * (len(ids_of_word) - 1)
        windows = []
        for begin, end, is_best in windows_of(
                len(pieces), self.max_seq_length - NUM_SPECIAL_SINGLE, self.doc_stride):
            words = {word_of[piece]: piece - begin + 1 for piece in range(begin, end)
                     if is_best[piece - begin] and piece in word_of}
            if not words:
                continue
            labels = [0, *(is_best[piece - begin] and of_pieces[piece]
                           for piece in range(begin, end)), 0]
            windows.append({
                **tokenizer.assembled(pieces[begin:end]), "label_ids": labels,
                "word_index": [*words], "word_place": [*words.values()]})
        return windows

    def feature_settings(self, split):
        return {"labels": self.labels, "scheme": self.scheme,
                "tagged": split != "test" or self.test_tags, "doc_stride": self.doc_stride,
                "all_tokens": self.label_all_tokens and split == "train",
                **dataclasses.asdict(self.reading)}

    # ---- model and results -------------------------------------------------

    def head(self, settings):
        return head_of("token_classification", len(self.labels),
                       dropout_prob=settings.dropout_prob)

    def tagged(self, examples: Sequence[Sentence], outputs: Outputs,
               columns: Mapping[str, Sequence]) -> list[Tagged]:
        """Returns the tags of each sentence, given a model's outputs, one row per
        window; `columns` are those of the windows' table of features."""
        result = [Tagged([""] * len(example.words), [0.0] * len(example.words))
                  for example in examples]
        for row, (example, words, places) in enumerate(zip(
                np.reshape(columns["example_index"], -1), columns["word_index"],
                columns["word_place"])):
            tags, scores = outputs["tags"][row], outputs["probabilities"][row]
            for word, place in zip(words, places):
                if not np.isfinite(scores[place]):
                    raise metrics.diverged("the model's output for word "
                                           f"{word + 1} of {examples[example].where()}")
                result[example].tags[word] = self.labels[tags[place]]
                result[example].scores[word] = float(scores[place])
        return result

    def score(self, data, outputs, table):
        return self.results(data, outputs, table)[0]

    def failure(self, data, outputs, table):
        tagged = self.tagged(data.examples, outputs, table.columns)
        predicted = {tag for sentence in tagged for tag in sentence.tags}
        true = {tag for example in data.examples for tag in example.tags}
        return f"all predictions are '{predicted.pop()}'" if (
            len(predicted) == 1 < len(true)) else ""

    def chance_loss(self, data, table):
        labels = table.columns["label_ids"].values
        return metrics.entropy(labels[labels > 0])

    def results(self, data, outputs, table):
        if not all(example.tags for example in data.examples):
            return {}, ""
        tagged = self.tagged(data.examples, outputs, table.columns)
        counts = scoring.score([example.tags for example in data.examples],
                               [tags for tags, _ in tagged], self.scheme)
        of_words = counts.metrics()
        scores = {name: of_words[name] for name in self.metric_names}
        how = "by tag" if self.scheme == "none" else "entities as conlleval counts them"
        return scores, "\n".join([
            f"{counts.words} words; {how}", "",
            *(f"{name:9}  {value:.4f}" for name, value in scores.items()), "",
            counts.report()])

    def write_predictions(self, folder, data, outputs, table, prediction_file="",
                          all_probabilities=False):
        """Writes the lines of the file, and answers.

          predictions.conll   the lines of the file with the predicted tags; for CoNLL-U
                              predictions.conllup, whose first line names the columns
          predictions.jsonl   one sentence per line: text and `answer`
        """
        examples = data.examples
        tagged = self.tagged(examples, outputs, table.columns)
        is_conllu = self.reading.format_of(examples[0].path) == "conllu"
        lines = [json.dumps({**sentence.fields, "text": sentence.text,
                             **self.answer(sentence, each)}, ensure_ascii=False) + "\n"
                 for sentence, each in zip(examples, tagged)]
        return write_files(folder, {
            f"predictions.conll{'up' * is_conllu}": with_tags(
                examples, [tags for tags, _ in tagged], is_conllu),
            "predictions.jsonl": "".join(lines)})

    def answer(self, sentence: Sentence, tagged: Tagged) -> dict[str, Any]:
        """Returns the answer for a sentence: `words`, `tags`, and `entities`, which are
        the characters start to end - 1 of the text, with the mean score of their
        tags."""
        result: dict[str, Any] = {"words": [*sentence.words], "tags": [*tagged.tags]}
        if self.scheme == "none":
            return result
        result["entities"] = []
        for first, end, kind in scoring.entities(tagged.tags):
            begin, last = sentence.spans[first][0], sentence.spans[end - 1][1]
            score = sum(tagged.scores[first:end]) / (end - first)
            result["entities"].append({
                "type": kind, "start": begin, "end": last,
                "text": sentence.text[begin:last], "score": round(score, 6)})
        return result


def build_task(train_file: str = "", *, labels: Optional[Sequence[str]] = None,
               known_labels: Sequence[str] = (), scheme: str = "auto",
               reading: Reading = Reading(), **options: Any) -> TaggingTask:
    """Builds a task; options that are left open are taken from the training file, "" for
    none. `known_labels`, those of the initial model, are used if they include all tags of
    the file, or if there is none."""
    paths = files.expand_patterns(train_file, "--train_file") if train_file else []
    reading = dataclasses.replace(reading, names=tuple(labels or ()))
    sentences = [sentence for path in paths for sentence in reading.read(path, scheme)[0]]
    first: dict[str, tuple[Sentence, int]] = {}  # where each tag is first
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            first.setdefault(tag, (sentence, place))
    if reading.split_words == "auto":
        of_characters = sentences and sentences[0].lines and (
            reading.strip_numbers or all(
                len(word) == 1 for sentence in sentences for word in sentence.words))
        reading = dataclasses.replace(
            reading, split_words="characters" if of_characters else "punctuation")
    if scheme == "auto" and sentences:
        scheme = scoring.recognise([sentence.tags for sentence in sentences])
    if scheme != "auto":
        for tag, (sentence, place) in first.items():
            scoring.check_tag(tag, scheme, sentence.where(place))
    tags = {*first}
    if options.get("label_all_tokens"):
        tags |= {scoring.continued(tag, scheme) for tag in tags}
    if labels is None:
        if not train_file and not known_labels:
            raise InputError("the tags are unknown without a training file or a model "
                             "that names them; give --labels in the order of the "
                             "model's outputs.")
        labels = (known_labels if tags <= set(known_labels) else
                  next(filter(None, map(reading.named_tags, paths)), None) or
                  sorted(tags, key=lambda tag: (tag.upper() != scoring.OUTSIDE, tag)))
    elif tags and not tags & set(labels):
        raise InputError(f"--labels: none of them is a tag in {train_file}, which has "
                         f"{some(sorted(tags), 5)}; correct the flag, or leave it out.")
    if scheme == "auto":
        scheme = scoring.scheme_of_labels(labels)
    return TaggingTask(tuple(labels), scheme, reading, **options)


# ---- the script ------------------------------------------------------------


def _sentences(use: str):
    return option(None, f"File of sentences to {use}; may be .gz. Several paths or globs, "
                  "separated by commas, are one set.")


@dataclasses.dataclass(frozen=True)
class TaggingOptions:
    """The files of a run, and what may be left to them."""

    train_file: Optional[str] = _sentences("train on")
    dev_file: Optional[str] = _sentences("evaluate on")
    test_file: Optional[str] = _sentences("predict")
    scheme: str = option(
        "auto", "How tags mark entities; none: they mark none (e.g. parts of speech), "
        "and each tag is scored by itself; auto: detected from the tags of "
        "--train_file.", choices=["auto", *scoring.SCHEMES], kept=True)
    labels: Optional[list[str]] = option(
        None, "The tags in the order of their ids; default: the tags that the schema of "
        "--train_file names (Parquet), or those in it, O first, the others sorted. They "
        "also name tags that are numbers.", kept=True)


class TaggingCommand(Command):
    """Tagging as run_tagger.py trains it: names, parts of speech."""

    options = (TaggingTask, TaggingOptions, Reading)
    defaults = dict(max_seq_length=128, save_checkpoints_steps=1000)
    helps = dict(
        save_checkpoints_steps=" With --do_eval, a tenth of the steps by default.")
    first = "train_file dev_file test_file"
    without = "prediction_file all_probabilities"
    own_data = True
    head = "token_classification"
    data_options = {split: f"{split}_file" for split in ("train", "dev", "test")}

    def task(self):
        values = self.values
        return build_task(
            values.do_train and values.train_file or "", labels=values.labels,
            known_labels=() if values.labels else self.initial_labels(),
            scheme=values.scheme, reading=given(Reading, values),
            max_seq_length=values.max_seq_length, doc_stride=values.doc_stride,
            label_all_tokens=values.label_all_tokens, test_tags=values.test_tags)

    def kept(self, task):
        return {**super().kept(task), "head": self.head}

    def chosen(self, task):
        return {"labels": list(task.labels), "scheme": task.scheme,
                "split_words": task.reading.split_words}
