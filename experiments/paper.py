"""Trains the paper's tables and figures again: docs/PAPER.md has the results.

    python -m experiments.paper sentence_objectives --scale=small

The word is one of EXPERIMENTS below. Each is a table or figure of the paper (arXiv
1909.11942v6, or version 1 where its title says so), with the numbers that the paper
prints and its claims.

- model_sizes: speed is that of a whole training step of the published sizes on random
  tokens, relative to BERT-large, measured on this machine in core-seconds, and derived
  from the operations of a step. A single machine sends nothing between chips, so it does
  not show what sharing saves there.
- sentence_objectives: each model's masked-LM accuracy is measured on records of its own
  kind, and its sentence accuracy on records of both kinds, with the head that it has.
  Label 1 means "the second segment does not follow", whether it comes from a different
  document or is swapped. The model without a sentence loss keeps its initial pooler and
  head, whose answers are random.
- equal_time: both models are first trained for the same number of steps. A new BERT-large
  is then trained for as long as ALBERT-xxlarge took.
- more_data: --text is all of the data; the model without additional data trains on every
  fourth article of it.
- dropout: the paper removes dropout after a million steps; here both models are trained
  from the start.
- layer_distances: analyze_layers.py reads the beginnings of held-out articles, as long as
  the training sequences. Unevenness is the distances' standard deviation over the layers,
  roughness their mean absolute second difference, both in percent of their mean. The first
  layer's input is the output of the embeddings and not of a layer.
"""

import itertools
import json
import os
import statistics
from typing import Any, Callable, Mapping, Sequence

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, SHARING
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import count_parameters
from benchmarks import runs
from count_parameters import note, paper_tables
from experiments import rows
from experiments.rows import FLAGS
from experiments.scales import Row, config_of
from experiments.tables import Experiment, Means

_MLM = "MLM, articles"


def _more(metric: str, better: str, worse: str) -> Callable[[Means], bool]:
    """Returns a claim: one row's score is higher than another's."""
    return lambda means: means[better][metric] > means[worse][metric]


# ---- BERT and ALBERT of all sizes ------------------------------------------

BERT_XLARGE = Experiment(
    "bert_xlarge", [
        Row("BERT-large", "bert-large", paper={"parameters": 334, "RACE": 73.9}),
        Row("BERT-xlarge", "bert-xlarge", paper={"parameters": 1270, "RACE": 54.3})],
    {"BERT-xlarge is worse than BERT-large": _more(_MLM, "BERT-large", "BERT-xlarge")})

# Row name → (config, the paper's figure in millions).
_COUNTED = {f"table {table}: {label}": (config, millions)
            for table, found in paper_tables().items()
            for label, config, millions in found}


def _counts(row: Row, *_) -> dict[str, Any]:
    count = count_parameters(_COUNTED[row.name][0])
    return {"scores": {"with pooler": count["with pooler"] / 1e6,
                       "without pooler": count["encoder"] / 1e6}}


PARAMETER_COUNTS = Experiment(
    "parameter_counts",
    [Row(name, paper={"parameters": millions})
     for name, (_, millions) in _COUNTED.items()],
    {"Parameter counts agree, with or without the pooler, except for ALBERT-xlarge and "
     "ALBERT-xxlarge": lambda means: all(
         "xlarge" in name or note(count_parameters(config), millions).startswith("agrees")
         for name, (config, millions) in _COUNTED.items() if means[name])},
    trains=False, measure=_counts, draw=None)

# Size → name, average and pretraining speed in the paper.
_SIZES = {
    "bert-base": ("BERT-base", 82.3, 4.7), "bert-large": ("BERT-large", 85.2, 1.0),
    "base": ("ALBERT-base", 80.1, 5.6), "large": ("ALBERT-large", 82.4, 1.7),
    "xlarge": ("ALBERT-xlarge", 85.5, 0.6), "xxlarge": ("ALBERT-xxlarge", 88.7, 0.3)}


def step_seconds(size: str) -> float:
    """Returns the core-seconds that a step of a published size takes on this machine."""
    path = os.path.join(FLAGS.work_dir, f"step_{size}.json")
    if not files.exists(path):
        runs.run_script("benchmarks.training", model=size, contestants="ours",
                        output=path, **rows.scale().step)
    return text_files.read_object(path)["results"][0]["seconds"]["ours"]["cores"]


def _with_speeds(row: Row, *given) -> dict[str, Any]:
    found = rows.measure(row, *given)
    for name, cost in (
            ("speed", step_seconds),
            ("speed, operations",
             lambda size: rows.operations(AlbertConfig.named(size)))):
        found["scores"][name] = cost("bert-large") / cost(row.size)
    return found


def _falls(metric: str, *sizes: str) -> Callable[[Means], bool]:
    """Returns a claim: a score falls from each size to the next."""
    names = [_SIZES[size][0] for size in sizes]
    return lambda means: all(means[more][metric] > means[less][metric]
                             for more, less in zip(names, names[1:]))


MODEL_SIZES = Experiment(
    "model_sizes", [
        Row(name, size, paper={"average": average, "speed": speed})
        for size, (name, average, speed) in _SIZES.items()],
    {"Larger ALBERT models are better": _falls(
        "MLM, SQuAD+RACE", "xxlarge", "xlarge", "large", "base"),
     "ALBERT-xxlarge is better than BERT-large": _falls(
         "average", "xxlarge", "bert-large"),
     "The speeds have the paper's order": _falls(
         "speed", "base", "bert-base", "large", "bert-large", "xlarge", "xxlarge")},
    squad=True, measure=_with_speeds)


# ---- embeddings and sharing ------------------------------------------------

# What is shared → the paper's average for each E.
EMBEDDINGS = (64, 128, 256, 768)
_BY_EMBEDDING = {"none": (81.3, 81.7, 81.8, 82.3), "all": (79.0, 80.1, 79.6, 79.8)}


def _gain(means: Means, sharing: str) -> float:
    """Returns the gain in masked-LM accuracy of the largest E over E = 128."""
    return means[f"E=768, {sharing}"][_MLM] - means[f"E=128, {sharing}"][_MLM]


EMBEDDING_SIZE = Experiment(
    "embedding_size", [
        Row(f"E={size}, {sharing}", config=dict(
            embedding_size=size, parameter_sharing=sharing), paper={"average": average})
        for sharing, averages in _BY_EMBEDDING.items()
        for size, average in zip(EMBEDDINGS, averages)],
    {"With nothing shared, a larger E is better": lambda means: all(
        means[f"E={less}, none"][_MLM] < means[f"E={more}, none"][_MLM]
        for less, more in zip(EMBEDDINGS, EMBEDDINGS[1:])),
     "With everything shared, E = 768 gains less over E = 128 than with nothing shared":
        lambda means: _gain(means, "all") < _gain(means, "none")})

# E → the paper's averages, in the order of SHARING.
_BY_SHARING = {768: (79.8, 81.6, 79.5, 82.3), 128: (80.1, 81.7, 80.2, 81.6)}


def _drops(means: Means, size: int) -> list[float]:
    """Returns the loss of masked-LM accuracy from sharing all, attention and ffn."""
    *shared, none = (means[f"E={size}, {sharing}"][_MLM] for sharing in SHARING)
    return [none - each for each in shared]


def _sharing_claims(size: int) -> dict[str, Callable[[Means], bool]]:
    """Returns the claims of section 4.5 for one embedding size."""
    def claim(holds):
        return lambda means: holds(*_drops(means, size))

    return {
        f"E={size}: sharing everything costs masked-LM accuracy":
            claim(lambda all_, attention, ffn: all_ > 0),
        f"E={size}: sharing attention costs less than sharing the feed-forward part":
            claim(lambda all_, attention, ffn: attention < ffn),
        f"E={size}: most of the cost of sharing everything is the feed-forward part":
            claim(lambda all_, attention, ffn: 0 < all_ / 2 < ffn)}


PARAMETER_SHARING = Experiment(
    "parameter_sharing", [
        Row(f"E={size}, {sharing}", config=dict(
            embedding_size=size, parameter_sharing=sharing), scale="longer",
            paper={"average": average})
        for size, averages in _BY_SHARING.items()
        for sharing, average in zip(SHARING, averages)],
    {**_sharing_claims(768), **_sharing_claims(128),
     "Sharing everything costs less with E=128 than with E=768": lambda means: (
         _drops(means, 128)[0] < _drops(means, 768)[0])}, seeds=2)


# ---- objectives, time, data and dropout ------------------------------------

SENTENCE_OBJECTIVES = Experiment(
    "sentence_objectives", [
        Row("none", sentence_objective="none", scale="sentences", paper={
            "MLM": 54.9, "NSP": 52.4, "SOP": 53.3, "average": 79.0}),
        Row("NSP", sentence_objective="next", scale="sentences", paper={
            "MLM": 54.5, "NSP": 90.5, "SOP": 52.0, "average": 79.2}),
        Row("SOP", scale="sentences", paper={
            "MLM": 54.0, "NSP": 78.9, "SOP": 86.5, "average": 80.1})],
    {"A model trained on NSP is at chance on SOP (47 to 53 %)": lambda means: all(
        abs(means["NSP"][f"SOP, {text}"] - 50) < 3 for text in rows.HELDOUT),
     "A model trained on SOP is above chance on NSP (over 53 %)": lambda means: all(
         means["SOP"][f"NSP, {text}"] > 53 for text in rows.HELDOUT),
     "SOP gives the best average": lambda means: means["SOP"]["average"] == max(
         means[name]["average"] for name in ("none", "NSP", "SOP"))},
    seeds=2, objectives=("next", "order"), squad=True)

EQUAL_TIME = Experiment(
    "equal_time", [
        Row("BERT-large", "bert-large", paper={
            "steps, thousands": 125, "average": 85.2}),
        Row("ALBERT-xxlarge", "xxlarge", paper={
            "steps, thousands": 125, "hours": 32, "average": 88.7}),
        Row("BERT-large, as long", "bert-large", as_long_as="xxlarge", paper={
            "steps, thousands": 400, "hours": 34, "average": 87.2})],
    {"In the same time ALBERT-xxlarge becomes better than BERT-large":
        _more("average", "ALBERT-xxlarge", "BERT-large, as long")}, squad=True)

MORE_DATA = Experiment(
    "more_data", [
        Row("a quarter of the data", text=0.25, paper={"SST-2": 90.3, "average": 80.1}),
        Row("all data", paper={"SST-2": 92.8, "average": 80.8})],
    {"More data give better masked-LM accuracy":
        _more(_MLM, "all data", "a quarter of the data")})

DROPOUT = Experiment(
    "dropout", [
        Row("with dropout", "xxlarge", dict(
            hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
            paper={"SST-2": 96.3, "average": 90.4}),
        Row("without dropout", "xxlarge", paper={"SST-2": 96.5, "average": 90.7})],
    {"Masked-LM accuracy is better without dropout":
        _more(_MLM, "without dropout", "with dropout")})


# ---- how much each layer changes its input ---------------------------------

_UNEVEN, _UNEVEN_LATER = "L2, unevenness", "L2, unevenness from layer 2 on"
_ROUGH = "L2, roughness from layer 2 on"
_ARTICLES = 1000
_CHARACTERS = 16  # per token; more than the average of any text


def _beginnings() -> str:
    """Writes the beginnings of held-out articles as JSON lines and returns the path."""
    path = os.path.join(FLAGS.work_dir, "articles.jsonl")
    most = _CHARACTERS * rows.scale().records["max_seq_length"]
    if not os.path.exists(path):
        with files.atomic_write(path) as stream:
            for article in itertools.islice(rows.articles("heldout_text"), _ARTICLES):
                text = " ".join(article)[:most]
                stream.write(json.dumps({"text": text}).encode() + b"\n")
    return path


def _unevenness(distances: Sequence[float]) -> float:
    return 100 * statistics.pstdev(distances) / statistics.fmean(distances)


def _roughness(distances: Sequence[float]) -> float:
    turns = [abs(before - 2 * here + after) for before, here, after in zip(
        distances, distances[1:], distances[2:])]
    return 100 * statistics.fmean(turns or [0.0]) / statistics.fmean(distances)


def _distances(row: Row, seed: int, *_) -> dict[str, Any]:
    folder = rows.train(row, seed)
    path = os.path.join(folder, "layers.json")
    if not os.path.exists(path):
        runs.run_script(
            "analyze_layers.py", model=checkpoint_of(folder, best=False), output=path,
            input_file=_beginnings(), spm_model_file=rows.vocabulary(),
            max_seq_length=rows.scale().records["max_seq_length"])
    [layers] = text_files.read_object(path)["models"].values()
    del layers["model"]  # A path.
    distances = layers["l2_distance"]["mean"]
    return {**rows.named(row, seed), "steps": rows.steps_of(row, seed),
            **runs.cost(folder), "scores": {
        "parameters": rows.parameters(config_of(row, rows.scale())),
        _UNEVEN: _unevenness(distances), _UNEVEN_LATER: _unevenness(distances[1:]),
        _ROUGH: _roughness(distances[1:]),
        "L2, mean": statistics.fmean(distances),
        "degrees, mean": statistics.fmean(layers["degrees"]["mean"])}, "layers": layers}


def _draw_distances(found: Mapping[str, Any], path: str) -> None:
    """Draws the layers of each row's first seed."""
    from albert_tf.features import layer_distances  # Imports TensorFlow.

    layer_distances.draw({each["row"]: each["layers"] for each in found["rows"]
                          if each["seed"] == 1}, path)


LAYER_DISTANCES = Experiment(
    "layer_distances", [
        Row("BERT-large", "bert-large", paper={"parameters": 334}),
        Row("ALBERT-large", "large", paper={"parameters": 18})],
    {"ALBERT's layers change their input more evenly than BERT's":
        _more(_UNEVEN, "BERT-large", "ALBERT-large"),
     "From layer 2 on, ALBERT's layers change their input more evenly":
        _more(_UNEVEN_LATER, "BERT-large", "ALBERT-large"),
     "From layer 2 on, ALBERT's changes from layer to layer are smoother":
        _more(_ROUGH, "BERT-large", "ALBERT-large")},
    seeds=2, measure=_distances, draw=_draw_distances)

EXPERIMENTS = {experiment.name: experiment for experiment in (
    BERT_XLARGE, PARAMETER_COUNTS, MODEL_SIZES, EMBEDDING_SIZE, PARAMETER_SHARING,
    SENTENCE_OBJECTIVES, EQUAL_TIME, MORE_DATA, DROPOUT, LAYER_DISTANCES)}


def main(argv):
    if len(argv) != 2 or argv[1] not in EXPERIMENTS:
        raise InputError(f"give one table or figure: {', '.join(EXPERIMENTS)}.")
    EXPERIMENTS[argv[1]].run()


if __name__ == "__main__":
    script.run(main, takes_words=True)
