r"""Compares pretraining recipes: held-out loss against computation.

    python -m experiments.time_to_quality --work_dir=quality_runs \
        --output=experiments/results/time_to_quality.json

Pretrains one model with several recipes and seeds through run_pretraining.py, on the same
text and vocabulary. Held-out documents are evaluated during training, at full depth and
with the same masks for all recipes. The results give losses against operations (of the
matrix products of all steps so far, by each step's depth and number of predictions) and,
at the end, against core-seconds. With --finetune the last checkpoint of each run is then
fine-tuned, with the same settings for all. Besides GLUE's tasks this can be `masked`
(masked tokens after 200 more steps of masking, for recipes that mask otherwise or not),
and `partut` and `wnut` (tags learned from frozen vectors, frozen_tags.py), which all
recipes have in common.

`compute_ratio` is the operations of `release` divided by the operations after which the
recipe first has the final loss of `release`. Both are taken from the mean curves over
seeds. It is missing if the recipe never reaches that loss.

`transformers` is that library's ALBERT, trained by transformers_pretraining.py; its
package is in benchmarks/requirements.txt.

Finished runs stay in --work_dir, and results are written after each run. If interrupted,
run the same command again to resume. Runs that the results file already has, with the same
settings, are skipped even if --work_dir is gone. --runs selects runs, for example
release:1,growing:2. `python -m experiments.time_to_quality --help` lists the recipes.
"""

import collections
import functools
import json
import math
import os
import statistics
import zlib
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from absl import flags

from albert_tf import files, pictures, text_files
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.training.schedules import by_length, depth_of, stages_of
from albert_tf.training.recipes import PRETRAINING_RECIPES
from benchmarks import benchmark_flags, runs
from benchmarks.contestants import step_flops

FLAGS = flags.FLAGS


LENGTH, BATCH_SIZE = 64, 32


class Records(NamedTuple):
    """Flags of create_pretraining_data.py that differ between recipes."""

    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 10
    dupe_factor: int = 5
    max_seq_length: int = LENGTH
    sentence_objective: str = "order"


# Name of a set of records → the flags that create it.
RECORDS = {
    "release": Records(),
    "masked25": Records(0.25, 16),
    "masked40": Records(0.4, 26),
    "short": Records(max_predictions_per_seq=5, max_seq_length=LENGTH // 2),
    "short40": Records(0.4, 13, max_seq_length=LENGTH // 2),
    # Sequences of full sentences.
    "alone": Records(sentence_objective="none"),
    "alone40": Records(0.4, 26, sentence_objective="none"),
    # Masked while training.
    "roberta": Records(0.0, sentence_objective="none"),
    # Put into orders while training: a sixth of 64 tokens is predicted.
    "unmasked": Records(0.0, 11),
}


class Recipe(NamedTuple):
    """A set of records and the flags of run_pretraining.py that differ between recipes;
    step counts are given as shares of all steps. Without `steps`, a run has as many as
    need the operations of `release`."""

    records: str = "release"  # at full length
    flags: Mapping[str, Any] = {}
    warmup: float = 0.05
    steps: Optional[float] = 1.0  # relative to the release recipe
    rate: float = 1.0  # relative to --learning_rate
    short: str = "short"  # records at half the length, for length schedules


_GROWING = {"depth_schedule": "3:0.5,6:0.25,12:0.25"}
_GROWING_LATE = {"depth_schedule": "3:0.4,6:0.2,12:0.4"}
_SMALL = {"train_batch_size": BATCH_SIZE // 2}
_LINEAR = {"decay_share": 1.0}
_LENGTHS = {"length_schedule": f"{LENGTH // 2}:0.8,{LENGTH}:0.2",
            "max_predictions_by_length": f"{LENGTH // 2}:5"}
_SMALL_LENGTHS = {
    **_SMALL, **_LENGTHS, "max_predictions_by_length": f"{LENGTH // 2}:13"}
RECIPES = {
    "release": Recipe(),
    "release_rate": Recipe(rate=1.5),
    # Several depth schedules.
    "growing": Recipe(flags=_GROWING),
    "growing_late": Recipe(flags=_GROWING_LATE),
    "growing_6": Recipe(flags={"depth_schedule": "6:0.6,12:0.4"}),
    "growing_stable": Recipe(flags={**_GROWING, "decay_share": 0.3}),
    "random_depth": Recipe(flags={"random_depth": "3-12"}),
    # The operations of `growing`, all at full depth.
    "shorter": Recipe(steps=0.5),
    # Other changes that might reduce the computation.
    "masked25": Recipe("masked25"),
    "masked40": Recipe("masked40"),
    "pieces_alone": Recipe("alone", {"sentence_objective": "none"}),
    "stable": Recipe(flags={"decay_share": 0.3}),
    "adamw": Recipe(flags={"optimizer": "adamw", "learning_rate": 3e-4}),
    "growing_masked25": Recipe("masked25", _GROWING),
    # Half the length first.
    "lengths": Recipe(flags=_LENGTHS),
    "half_batch": Recipe(flags=_SMALL),
    "half_batch_masked40": Recipe("masked40", _SMALL),
    "half_masked40": Recipe("masked40", steps=0.5),
    # Batches of half the size for the same number of steps: with depth that grows later,
    # without sentence loss, with a higher learning rate.
    "small_growing_late": Recipe("masked40", {**_SMALL, **_GROWING_LATE}),
    "small_growing_alone": Recipe(
        "alone40", {**_SMALL, **_GROWING, "sentence_objective": "none"}),
    "small_growing_late_rate": Recipe(
        "masked40", {**_SMALL, **_GROWING_LATE}, rate=1.5),
    # The presets of --recipe. Number and size of batches are those of all runs here,
    # except that `fast` has half of the batch size of `release`, as in its preset.
    "roberta": Recipe("roberta", {"recipe": "roberta"}),
    "fast": Recipe("masked40", {"recipe": "fast", **_SMALL}),
    # With a learning rate that decays from the warm-up on; the same with a length
    # schedule, and with a higher rate.
    "fast_linear": Recipe("masked40", {"recipe": "fast", **_SMALL, **_LINEAR}),
    "fast_lengths": Recipe("masked40", {"recipe": "fast", **_SMALL_LENGTHS, **_LINEAR},
                           short="short40"),
    "fast_rate": Recipe("masked40", {"recipe": "fast", **_SMALL, **_LINEAR}, rate=1.5),
    # At equal computation: fast with the operations of release, and the reverse.
    "fast_longer": Recipe("masked40", {"recipe": "fast", **_SMALL}, steps=3.2),
    "release_shorter": Recipe(steps=0.31),
    # The steps of fast_longer at full depth: 1.8 times its operations.
    "longer_full_depth": Recipe(
        "masked40", {"recipe": "fast", **_SMALL, "depth_schedule": "12:1"}, steps=3.2),
    # At any depth: fast and XLNet's objective with the operations of release.
    "fast_equal": Recipe("masked40", {"recipe": "fast", **_SMALL}, steps=None),
    "permutation": Recipe("unmasked", {"objective": "permutation"}, steps=None),
    # Trained by its own script; all tokens of a sequence go through its head. The learning
    # rate was not tuned for it: it is the best one found for our AdamW at this depth.
    "transformers": Recipe(flags={"learning_rate": 3e-4}),
}

_WIKI = os.path.join(benchmark_flags.DATA, "wiki_en")
flags.DEFINE_string("text", os.path.join(_WIKI, "train.txt"), "Text files to train on.")
flags.DEFINE_string("heldout_text", os.path.join(_WIKI, "dev.txt"),
                    "Text files to evaluate on.")
flags.DEFINE_string("work_dir", None, "Folder for records and runs.", required=True)
flags.DEFINE_list("runs", ["release:1", "growing:1"],
                  f"Runs to train, as RECIPE:SEED; recipes are {', '.join(RECIPES)}.")
flags.DEFINE_integer("num_train_steps", 4000, "Training steps of the release recipe.",
                     lower_bound=1)
flags.DEFINE_integer("num_evaluations", 16, "Number of evaluations of each run.",
                     lower_bound=1)
flags.DEFINE_integer("hidden_size", 128, "Hidden size of the model, a multiple of 64.",
                     lower_bound=64)
flags.DEFINE_integer("num_hidden_layers", 12, "Passes through the shared layer.",
                     lower_bound=1)
flags.DEFINE_integer("vocab_size", 8000, "Size of the vocabulary.", lower_bound=300)
flags.DEFINE_float("learning_rate", 0.004, "Learning rate of LAMB.")
flags.DEFINE_enum("dtype", "bfloat16", DTYPES, "Number type of all training.")
flags.DEFINE_list("finetune", [], "Tasks to fine-tune on or to learn from frozen "
                  "vectors: those of GLUE, such as sst-2,mrpc, and masked, partut, wnut.")
flags.DEFINE_string("data_dir", os.path.join(benchmark_flags.DATA, "glue"),
                    "Folder with the GLUE tasks.")
flags.DEFINE_string("tagging_dir", os.path.join(benchmark_flags.DATA, "tagging"),
                    "Folder with the data of partut and wnut.")
flags.DEFINE_bool("train", True, "Train missing runs. If false, use the existing runs as "
                  "far as they got.")
benchmark_flags.define_output_flag()

EVALUATED = 2048  # held-out sequences
METRICS = ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_loss",
           "sentence_order_accuracy", "permutation_loss", "permutation_accuracy")
# Task learned from frozen vectors → its files of sentences.
TAGS = {"partut": "ud_partut/{}.conllu", "wnut": "wnut17/{}.conll"}
# Task → its score, if it is not the accuracy.
SCORES = {"masked": "masked_lm_accuracy", "wnut": "f1"}
ADAPTATION = 200  # steps
# X axis of a curve: key of a result → (scale, label).
AXES = {"flops": (1e-12, "10¹² operations"), "core_seconds_at": (1.0, "core-seconds")}
_MAIN = {*PRETRAINING_RECIPES, "transformers"}


def model_config() -> AlbertConfig:
    return AlbertConfig(
        vocab_size=FLAGS.vocab_size, embedding_size=128, hidden_size=FLAGS.hidden_size,
        num_hidden_layers=FLAGS.num_hidden_layers,
        num_attention_heads=FLAGS.hidden_size // 32,
        intermediate_size=4 * FLAGS.hidden_size, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def make_records(name: str, heldout: bool = False) -> str:
    """Creates a set of records unless it exists, and returns its path.

    Held-out records have the sequences and masks of `release`, with room for as many
    predictions as the set that they evaluate. Only `unmasked` has no masks there.
    """
    made = RECORDS[name]
    if heldout and name == "unmasked":
        made = made._replace(dupe_factor=1)
    elif heldout:
        # Runs without a sentence loss ignore the sentence label.
        made = made._replace(
            dupe_factor=1, masked_lm_prob=0.15, sentence_objective="order")
        name = next(other for other, records in RECORDS.items() if made == records._replace(
            dupe_factor=1, masked_lm_prob=0.15))
    return runs.records(
        f"{FLAGS.work_dir}/{'heldout_' * heldout}{name}.tfrecord",
        input_file=FLAGS.heldout_text if heldout else FLAGS.text,
        spm_model_file=runs.vocabulary(FLAGS.work_dir, FLAGS.text, FLAGS.vocab_size),
        **made._asdict())


def output_dir(name: str, seed: int) -> str:
    return os.path.join(FLAGS.work_dir, f"{name}_{seed}")


def num_steps(recipe: Recipe, config: AlbertConfig) -> int:
    if recipe.steps is not None:
        return max(round(recipe.steps * FLAGS.num_train_steps), 1)
    # Schedules are shares of all steps, so operations grow in proportion to the steps.
    release, own = (
        math.fsum(map(flops_of_steps(other, FLAGS.num_train_steps, 0, config),
                      range(FLAGS.num_train_steps)))
        for other in (RECIPES["release"], recipe))
    return max(round(FLAGS.num_train_steps * release / own), 1)


def train(name: str, seed: int, config: AlbertConfig) -> None:
    recipe = RECIPES[name]
    steps = num_steps(recipe, config)
    if name == "transformers":
        _train_transformers(output_dir(name, seed), seed, steps, config)
        return
    records = make_records(recipe.records)
    runs.pretrain(output_dir(name, seed), config, steps, **{
        "input_file": f"{LENGTH // 2}:{make_records(recipe.short)},{LENGTH}:{records}"
                      if "length_schedule" in recipe.flags else records,
        "eval_input_file": make_records(recipe.records, heldout=True),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": RECORDS[recipe.records].max_predictions_per_seq,
        "train_batch_size": BATCH_SIZE, "eval_batch_size": 64,
        "max_eval_steps": EVALUATED // 64,
        "learning_rate": recipe.rate * FLAGS.learning_rate,
        "num_warmup_steps": round(recipe.warmup * steps),
        "save_checkpoints_steps": max(steps // FLAGS.num_evaluations, 1),
        "iterations_per_loop": max(steps // 100, 1), "keep_checkpoint_max": 1,
        "random_seed": seed, "dtype": FLAGS.dtype, **recipe.flags})


def _train_transformers(folder: str, seed: int, steps: int, config: AlbertConfig
                        ) -> None:
    if os.path.exists(os.path.join(folder, "config.json")):
        return
    path = f"{folder}.config.json"
    files.write(path, config.to_json().encode())
    runs.run_counted(
        "benchmarks.transformers_pretraining", folder, albert_config_file=path,
        spm_model_file=runs.vocabulary(FLAGS.work_dir, FLAGS.text, FLAGS.vocab_size),
        input_file=FLAGS.text, eval_input_file=make_records("release", heldout=True),
        max_seq_length=LENGTH, train_batch_size=BATCH_SIZE, num_train_steps=steps,
        num_warmup_steps=round(RECIPES["transformers"].warmup * steps),
        save_checkpoints_steps=max(steps // FLAGS.num_evaluations, 1),
        max_eval_examples=EVALUATED, random_seed=seed, dtype=FLAGS.dtype,
        **RECIPES["transformers"].flags)


def model_of(name: str, seed: int) -> str:
    """Returns the model of a finished run, as a value for --init_checkpoint."""
    folder = output_dir(name, seed)
    return folder if name == "transformers" else checkpoint_of(folder, best=False)


def adapt(name: str, seed: int) -> Optional[dict[str, float]]:
    """Trains a run's model on masked tokens for a few steps more, with the same settings
    for all; returns its last evaluation."""
    folder = os.path.join(output_dir(name, seed), "masked")
    if FLAGS.train:
        runs.pretrain(folder, model_config(), ADAPTATION, **{
            "init_checkpoint": model_of(name, seed),
            "input_file": make_records("release"),
            "eval_input_file": make_records("release", heldout=True),
            "max_seq_length": LENGTH,
            "max_predictions_per_seq": RECORDS["release"].max_predictions_per_seq,
            "train_batch_size": BATCH_SIZE, "eval_batch_size": 64,
            "max_eval_steps": EVALUATED // 64, "learning_rate": FLAGS.learning_rate / 2,
            "num_warmup_steps": ADAPTATION // 10, "save_checkpoints_steps": ADAPTATION,
            "keep_checkpoint_max": 1, "random_seed": seed, "dtype": FLAGS.dtype})
    rows = runs.rows_of(folder)
    return rows[-1] if rows else None


def finetune(name: str, seed: int, task: str) -> Optional[dict[str, float]]:
    """Fine-tunes a run's model, with the same settings for all; returns its scores."""
    if task == "masked":
        return adapt(name, seed)
    folder = output_dir(name, seed)
    below, steps = os.path.join(folder, task), {"mrpc": 345}.get(task, 2000)
    if not FLAGS.train and not os.path.exists(f"{below}/eval_results.json"):
        return None
    if task in TAGS:
        return runs.scores(
            "experiments.frozen_tags", below, model=model_of(name, seed),
            spm_model_file=f"{FLAGS.work_dir}/spm.model", max_seq_length=LENGTH,
            **{f"{split}_file": os.path.join(FLAGS.tagging_dir, TAGS[task].format(split))
               for split in ("train", "dev")})
    return runs.scores(
        "run_classifier.py", below, task_name=task, data_dir=FLAGS.data_dir,
        init_checkpoint=model_of(name, seed), dtype=FLAGS.dtype,
        spm_model_file=f"{FLAGS.work_dir}/spm.model", do_train="true", do_eval="true",
        max_seq_length=LENGTH, train_batch_size=32, learning_rate=1e-4,
        train_step=steps, warmup_step=steps // 10, save_checkpoints_steps=steps,
        random_seed=seed)


def flops_of_steps(recipe: Recipe, steps: int, seed: int, config: AlbertConfig
                   ) -> Callable[[int], float]:
    """Returns step → operations of its matrix products (by depth, length, batch)."""
    given = dict(recipe.flags)
    if recipe is RECIPES["transformers"]:
        always = step_flops(config, BATCH_SIZE, LENGTH, LENGTH)
        return lambda step: always
    if "recipe" in given:
        given = {**PRETRAINING_RECIPES[given["recipe"]].training_for(config),
                 "train_batch_size": BATCH_SIZE, **given}
    depth = depth_of(config, steps, seed, given.get("depth_schedule", ""),
                     given.get("random_depth", ""))
    batch_size = given.get("train_batch_size", BATCH_SIZE)
    stages = stages_of(steps, LENGTH, given.get("length_schedule", ""))
    masked = by_length(
        given.get("max_predictions_by_length", ""), "--max_predictions_by_length",
        [stage.length for stage in stages], "")

    @functools.cache
    def of_kind(passes, stage):
        predicted = masked.get(
            stage.length, RECORDS[recipe.records].max_predictions_per_seq)
        # With two streams the layers have a row for each prediction, too.
        rows = stage.length + predicted * (given.get("objective") == "permutation")
        return step_flops(
            config.replace(num_hidden_layers=passes), batch_size, rows, predicted)

    def of_step(step):
        stage = next(stage for stage in reversed(stages) if stage.begin <= step)
        return of_kind(depth.at(step) if depth else config.num_hidden_layers, stage)

    return of_step


def result_of(name: str, seed: int, config: AlbertConfig) -> Optional[dict[str, Any]]:
    """Returns the curve of a run as far as it got; None without any evaluation."""
    recipe, folder = RECIPES[name], output_dir(name, seed)
    rows = runs.rows_of(folder)
    if not rows:
        return None
    steps = num_steps(recipe, config)
    flops, done, ends = [], 0.0, {row["step"] for row in rows}
    of_step = flops_of_steps(recipe, steps, seed, config)
    for step in range(rows[-1]["step"]):
        done += of_step(step)
        if step + 1 in ends:
            flops.append(done)
    return {
        "recipe": name, "seed": seed, "settings": settings(name, config),
        "dtype": FLAGS.dtype, **benchmark_flags.machine(),
        "finished": rows[-1]["step"] >= steps,
        "step": [row["step"] for row in rows], "flops": flops,
        **{metric: [row[metric] for row in rows] for metric in METRICS
           if metric in rows[0]},
        **(cost := runs.cost(folder)),
        **({"core_seconds_at": [round(share * cost["core_seconds"], 1) for share in
                                shares_of_time(folder, [row["step"] for row in rows],
                                               of_step)]}
           if cost else {}),
        "finetuned": {task: scores for task in FLAGS.finetune
                      if (scores := finetune(name, seed, task))}}


def shares_of_time(folder: str, steps: Sequence[int], of_step: Callable[[int], float]
                   ) -> list[float]:
    """Returns the share of the training time at each evaluated step.

    Steps with the same number of operations count with the median of their times, since
    other work on the machine may have slowed some of them.
    """
    rates = collections.defaultdict(list)
    for row in runs.rows_of(folder, "train"):
        rates[of_step(row["step"] - 1)].append(row["steps_per_second"])
    seconds = {flops: 1 / statistics.median(found) for flops, found in rates.items()}
    each = [seconds.get(of_step(step), 0.0 if rates else 1.0)
            for step in range(steps[-1])]
    return [math.fsum(each[:step]) / math.fsum(each) for step in steps]


def flops_to(result: Mapping[str, Any], loss: float) -> Optional[float]:
    """Returns the operations at which a run first reaches `loss`, interpolated linearly
    between two evaluations; None if it never does."""
    points = list(zip(result["flops"], result.get("masked_lm_loss", ())))
    for (before, high), (after, low) in zip([(0.0, math.inf), *points], points):
        if low <= loss:
            return after if high == math.inf or high == low else (
                before + (after - before) * (high - loss) / (high - low))
    return None


def mean(values) -> Optional[float]:
    values = list(values)
    return None if not values or None in values else math.fsum(values) / len(values)


def mean_curve(results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns the mean curves of runs that were evaluated at the same steps."""
    return {key: [mean(values) for values in zip(*(result[key] for result in results))]
            for key in (*AXES, *METRICS) if all(key in result for result in results)}


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row per recipe, with means over its finished runs."""
    finished = [result for result in results if result["finished"]]
    goal = mean(r["masked_lm_loss"][-1] for r in finished if r["recipe"] == "release")
    rows = []
    for name in dict.fromkeys(result["recipe"] for result in finished):
        own = [result for result in finished if result["recipe"] == name]
        row = {"recipe": name, "seeds": len(own),
               "flops": mean(result["flops"][-1] for result in own),
               # Runs that were interrupted have no cost.
               "core_seconds": mean(result["core_seconds"] for result in own
                                    if "core_seconds" in result)}
        row |= {metric: mean(result[metric][-1] for result in own)
                for metric in METRICS if all(metric in result for result in own)}
        losses = [(result.get("masked_lm_loss") or result["permutation_loss"])[-1]
                  for result in own]
        row["spread"] = max(losses) - min(losses)
        row |= {task: mean(result["finetuned"][task][SCORES.get(task, "accuracy")]
                           for result in own)
                for task in dict.fromkeys(task for result in own
                                          for task in result["finetuned"])
                if all(task in result["finetuned"] for result in own)}
        if goal is not None:
            row["flops_to_release"] = flops_to(mean_curve(own), goal)
        rows.append(row)
    release = next((row for row in rows if row["recipe"] == "release"), None)
    for row in rows:
        if release and row.get("flops_to_release"):
            row["compute_ratio"] = release["flops"] / row["flops_to_release"]
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a Markdown table."""
    columns = {"seeds": ("seeds", 1, 0), "flops": ("TFLOP", 1e-12, 1),
               "core_seconds": ("core-s", 1, 0), "masked_lm_loss": ("loss", 1, 3),
               "permutation_loss": ("loss in orders", 1, 3),
               "spread": ("spread", 1, 3), "masked_lm_accuracy": ("masked LM, %", 100, 1),
               "sentence_order_accuracy": ("sentence order, %", 100, 1),
               "compute_ratio": ("ratio", 1, 2),
               **{name: (f"{name}, %", 100, 1) for row in rows for name in row
                  if name in FLAGS.finetune}}

    def shown(row, name, scale, digits):
        value = row.get(name)
        return "-" if value is None else f"{scale * value:,.{digits}f}"

    print("\n| recipe | " + " | ".join(title for title, *_ in columns.values()) + " |")
    print("| --- " * (1 + len(columns)) + "|")
    for row in rows:
        print(" | ".join([f"| {row['recipe']}", *(
            shown(row, name, *how) for name, (_, *how) in columns.items())]) + " |")


def draw(results: list[dict[str, Any]], path: str) -> None:
    """Draws mean held-out losses of finished runs against operations and time. Curves of
    the presets of --recipe and of transformers are thicker."""
    finished = [result for result in results if result["finished"]]
    names = list(dict.fromkeys(result["recipe"] for result in finished))
    panels = [("masked_lm_loss", "flops"), ("masked_lm_loss", "core_seconds_at"),
              ("sentence_order_loss", "flops")]
    figure = pictures.figure(16, 5)
    for axis, (metric, cost) in zip(figure.subplots(1, len(panels)), panels):
        first = []
        for number, name in enumerate(names):
            own = [result for result in finished
                   if result["recipe"] == name and cost in result]
            curve = mean_curve(own) if own else {}
            if metric not in curve:
                continue
            scale, _ = AXES[cost]
            first.append(curve[metric][0])
            axis.plot([scale * value for value in curve[cost]], curve[metric],
                      color=f"C{number % 10}", label=name,
                      linewidth=2.2 if name in _MAIN else 0.9,
                      linestyle="-" if number < 10 else "--")
        # While depth grows, the loss at full depth is far off; cut it.
        axis.set_ylim(top=max(first, default=None))
        axis.set_title(f"held-out {metric.replace('_', ' ')}")
        axis.set_xlabel(AXES[cost][1])
        axis.grid(alpha=0.3)
    # The legend is long and stands beside the panels; not every run is in each of them.
    lines = {label: line for axis in figure.axes
             for line, label in zip(*axis.get_legend_handles_labels())}
    figure.axes[-1].legend(lines.values(), lines, fontsize=7, loc="upper left",
                           bbox_to_anchor=(1.01, 1))
    pictures.save(figure, path)


def settings(name: str, config: AlbertConfig) -> str:
    """Returns a checksum of everything that determines a recipe's run."""
    recipe = RECIPES[name]
    made_by = (config, FLAGS.num_train_steps, FLAGS.num_evaluations, FLAGS.learning_rate,
               FLAGS.dtype, recipe, RECORDS[recipe.records],
               *(PRETRAINING_RECIPES[word].training_for(config)
                 for word in [recipe.flags.get("recipe")] if word))
    return f"{zlib.crc32(repr(made_by).encode()):08x}"


def written() -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the contents of the results file: (recipe, seed) → result."""
    if not (FLAGS.output and os.path.exists(FLAGS.output)):
        return {}
    return {(found["recipe"], found["seed"]): found
            for found in text_files.read_object(FLAGS.output)["runs"]}


def kept(name: str, seed: int, config: AlbertConfig) -> Optional[dict[str, Any]]:
    """Returns a finished run from the results file if its settings are the current ones."""
    found = written().get((name, seed))
    if (found and found["finished"] and found.get("settings") == settings(name, config)
            and set(FLAGS.finetune) <= found["finetuned"].keys()):
        return found
    return None


def write(results: list[dict[str, Any]], config: AlbertConfig) -> None:
    rows = summary(results)
    benchmark_flags.write_output({
        "config": json.loads(config.to_json()),
        "batch_size": BATCH_SIZE, "length": LENGTH, "compute_ratio": {
            row["recipe"]: row.get("compute_ratio") for row in rows},
        "summary": rows, "runs": results})


def main(_):
    chosen, config = runs.chosen_runs(FLAGS.runs, "RECIPE", RECIPES), model_config()
    for name in ("text", "heldout_text"):
        files.expand_patterns(FLAGS[name].value, f"--{name}")
    files.make_directory(FLAGS.work_dir, "--work_dir")
    benchmark_flags.make_output_folder()
    # Recipes that this version of the file does not know are sorted last.
    order = {name: number for number, name in enumerate(RECIPES)}
    for name, seed in chosen:
        found = kept(name, seed, config)
        if not found:
            if FLAGS.train:
                train(name, seed, config)
            found = result_of(name, seed, config)
        if found:
            # Read again: another process may have added runs meanwhile.
            every = {**written(), (name, seed): found}
            results = [every[key] for key in sorted(
                every, key=lambda key: (order.get(key[0], len(order)), key))]
            write(results, config)
            print_table(summary(results))
            if FLAGS.output:
                draw(results, f"{os.path.splitext(FLAGS.output)[0]}.png")


if __name__ == "__main__":
    script.run(main)
