r"""Compares pretraining recipes: held-out loss against computation.

    python -m experiments.time_to_quality --work_dir=quality_runs \
        --output=experiments/results/time_to_quality.json

Pretrains one model with several recipes and seeds through run_pretraining.py, on the same
text and vocabulary. Held-out documents are evaluated during training, at full depth and
with the same masks for all recipes. The results give losses against operations (of the
matrix products of all steps so far, by each step's depth and number of predictions) and,
at the end, against core-seconds. With --finetune the last checkpoint of each run is then
fine-tuned, with the same settings for all. Besides GLUE's tasks this can be `masked`:
masked tokens after 200 more steps of masking, for recipes that mask otherwise or not.

`compute_ratio` is the operations of `release` divided by the operations after which the
recipe first has the final loss of `release`. Both are taken from the mean curves over
seeds. It is missing if the recipe never reaches that loss.

Finished runs stay in --work_dir, and results are written after each run: the same command
resumes. --runs selects runs, for example release:1,growing:2; --help lists the recipes.
"""

import functools
import json
import math
import os
from typing import Any, Callable, Mapping, NamedTuple, Optional

from absl import flags

from albert_tf import files, pictures, text_files
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.training.schedules import PRETRAINING_RECIPES, depth_of
from benchmarks import benchmark_flags, runs
from benchmarks.contestants import step_flops

FLAGS = flags.FLAGS

LENGTH, BATCH_SIZE = 64, 32


class Records(NamedTuple):
    """Flags of create_pretraining_data.py that differ between recipes."""

    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 10
    dupe_factor: int = 5
    sentence_objective: str = "order"


# Name of a set of records → the flags that create it.
RECORDS = {
    "release": Records(),
    "masked40": Records(0.4, 26),
    # Masked while training.
    "roberta": Records(0.0, sentence_objective="none"),
    # Put into orders while training: a sixth of 64 tokens is predicted.
    "unmasked": Records(0.0, 11),
}


class Recipe(NamedTuple):
    """A set of records and the flags of run_pretraining.py that differ between recipes;
    step counts are given as shares of all steps. Without `steps`, a run has as many as
    need the operations of `release`."""

    records: str = "release"
    flags: Mapping[str, Any] = {}
    warmup: float = 0.05
    steps: Optional[float] = 1.0  # relative to the release recipe


_GROWING = {"depth_schedule": "3:0.5,6:0.25,12:0.25"}
_SMALL = {"train_batch_size": BATCH_SIZE // 2}
RECIPES = {
    "release": Recipe(),
    "growing": Recipe(flags=_GROWING),
    # The operations of `growing`, all at full depth.
    "shorter": Recipe(steps=0.5),
    # Other changes that might reduce the computation.
    "masked40": Recipe("masked40"),
    "half_batch_masked40": Recipe("masked40", _SMALL),
    # The presets of --recipe. Number and size of batches are those of all runs here,
    # except that `fast` has half of the batch size of `release`, as in its preset.
    "roberta": Recipe("roberta", {"recipe": "roberta"}),
    "fast": Recipe("masked40", {"recipe": "fast", **_SMALL}),
    # At equal computation: fast with the operations of release, and the reverse.
    "fast_longer": Recipe("masked40", {"recipe": "fast", **_SMALL}, steps=3.2),
    "release_shorter": Recipe(steps=0.31),
    # At any depth: fast and XLNet's objective with the operations of release.
    "fast_equal": Recipe("masked40", {"recipe": "fast", **_SMALL}, steps=None),
    "permutation": Recipe("unmasked", {"objective": "permutation"}, steps=None),
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
flags.DEFINE_integer("num_hidden_layers", 12, "Layers, which share their parameters.",
                     lower_bound=1)
flags.DEFINE_integer("vocab_size", 8000, "Size of the vocabulary.", lower_bound=300)
flags.DEFINE_float("learning_rate", 0.004, "Learning rate of LAMB.")
flags.DEFINE_enum("dtype", "bfloat16", DTYPES, "Number type of all training.")
flags.DEFINE_list("finetune", [], "Tasks to fine-tune on: those of GLUE, such as "
                  "sst-2,mrpc, and masked.")
flags.DEFINE_string("data_dir", os.path.join(benchmark_flags.DATA, "glue"),
                    "Folder with the GLUE tasks.")
benchmark_flags.define_output_flag()

EVALUATED = 2048  # held-out sequences
METRICS = ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_loss",
           "sentence_order_accuracy", "permutation_loss", "permutation_accuracy")
# Task → its score, if it is not the accuracy.
SCORES = {"masked": "masked_lm_accuracy"}
ADAPTATION = 200  # steps


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
        max_seq_length=LENGTH, **made._asdict())


def output_dir(name: str, seed: int) -> str:
    return os.path.join(FLAGS.work_dir, f"{name}_{seed}")


def num_steps(recipe: Recipe, config: AlbertConfig) -> int:
    if recipe.steps is not None:
        return max(round(recipe.steps * FLAGS.num_train_steps), 1)
    # Schedules are shares of all steps, so operations grow in proportion to the steps.
    release, own = (
        math.fsum(map(flops_of_steps(other, FLAGS.num_train_steps, config),
                      range(FLAGS.num_train_steps)))
        for other in (RECIPES["release"], recipe))
    return max(round(FLAGS.num_train_steps * release / own), 1)


def train(name: str, seed: int, config: AlbertConfig) -> None:
    recipe = RECIPES[name]
    steps = num_steps(recipe, config)
    runs.pretrain(output_dir(name, seed), config, steps, **{
        "input_file": make_records(recipe.records),
        "eval_input_file": make_records(recipe.records, heldout=True),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": RECORDS[recipe.records].max_predictions_per_seq,
        "train_batch_size": BATCH_SIZE, "eval_batch_size": 64,
        "max_eval_steps": EVALUATED // 64,
        "learning_rate": FLAGS.learning_rate,
        "num_warmup_steps": round(recipe.warmup * steps),
        "save_checkpoints_steps": max(steps // FLAGS.num_evaluations, 1),
        "iterations_per_loop": max(steps // 100, 1), "keep_checkpoint_max": 1,
        "random_seed": seed, "dtype": FLAGS.dtype, **recipe.flags})


def adapt(name: str, seed: int) -> dict[str, float]:
    """Trains a run's model on masked tokens for a few steps more, with the same settings
    for all; returns its last evaluation."""
    folder = os.path.join(output_dir(name, seed), "masked")
    runs.pretrain(
        folder, model_config(), ADAPTATION,
        init_checkpoint=checkpoint_of(output_dir(name, seed), best=False),
        input_file=make_records("release"),
        eval_input_file=make_records("release", heldout=True), max_seq_length=LENGTH,
        max_predictions_per_seq=RECORDS["release"].max_predictions_per_seq,
        train_batch_size=BATCH_SIZE, eval_batch_size=64, max_eval_steps=EVALUATED // 64,
        learning_rate=FLAGS.learning_rate / 2, num_warmup_steps=ADAPTATION // 10,
        save_checkpoints_steps=ADAPTATION, keep_checkpoint_max=1, random_seed=seed,
        dtype=FLAGS.dtype)
    return runs.rows_of(folder)[-1]


def finetune(name: str, seed: int, task: str) -> dict[str, float]:
    """Fine-tunes a run's model, with the same settings for all; returns its scores."""
    if task == "masked":
        return adapt(name, seed)
    folder = output_dir(name, seed)
    below, steps = os.path.join(folder, task), {"mrpc": 345}.get(task, 2000)
    return runs.scores(
        "run_classifier.py", below, task_name=task, data_dir=FLAGS.data_dir,
        init_checkpoint=checkpoint_of(folder, best=False), dtype=FLAGS.dtype,
        spm_model_file=f"{FLAGS.work_dir}/spm.model", do_train="true", do_eval="true",
        max_seq_length=LENGTH, train_batch_size=32, learning_rate=1e-4,
        train_step=steps, warmup_step=steps // 10, save_checkpoints_steps=steps,
        random_seed=seed)


def flops_of_steps(recipe: Recipe, steps: int, config: AlbertConfig
                   ) -> Callable[[int], float]:
    """Returns step → operations of its matrix products (by depth and batch)."""
    given = dict(recipe.flags)
    if "recipe" in given:
        given = {**PRETRAINING_RECIPES[given["recipe"]].training_for(config),
                 "train_batch_size": BATCH_SIZE, **given}
    depth = depth_of(config, steps, given.get("depth_schedule", ""))
    predicted = RECORDS[recipe.records].max_predictions_per_seq
    # With two streams the layers have a row for each prediction, too.
    rows = LENGTH + predicted * (given.get("objective") == "permutation")

    @functools.cache
    def of_depth(passes):
        return step_flops(config.replace(num_hidden_layers=passes), given.get(
            "train_batch_size", BATCH_SIZE), rows, predicted)

    return lambda step: of_depth(depth.at(step) if depth else config.num_hidden_layers)


def result_of(name: str, seed: int, config: AlbertConfig) -> dict[str, Any]:
    """Returns the curve of a run."""
    recipe, folder = RECIPES[name], output_dir(name, seed)
    rows = runs.rows_of(folder)
    steps = num_steps(recipe, config)
    flops, done, ends = [], 0.0, {row["step"] for row in rows}
    of_step = flops_of_steps(recipe, steps, config)
    for step in range(rows[-1]["step"]):
        done += of_step(step)
        if step + 1 in ends:
            flops.append(done)
    return {
        "recipe": name, "seed": seed, "dtype": FLAGS.dtype, **benchmark_flags.machine(),
        "finished": rows[-1]["step"] >= steps,
        "step": [row["step"] for row in rows], "flops": flops,
        **{metric: [row[metric] for row in rows] for metric in METRICS
           if metric in rows[0]},
        **runs.cost(folder),
        "finetuned": {task: finetune(name, seed, task) for task in FLAGS.finetune}}


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
            for key in ("flops", *METRICS) if all(key in result for result in results)}


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
    """Draws mean held-out losses of finished runs against operations. Curves of the
    presets of --recipe are thicker."""
    finished = [result for result in results if result["finished"]]
    names = list(dict.fromkeys(result["recipe"] for result in finished))
    figure = pictures.figure(12, 5)
    panels = ("masked_lm_loss", "sentence_order_loss")
    for axis, metric in zip(figure.subplots(1, len(panels)), panels):
        for number, name in enumerate(names):
            curve = mean_curve([r for r in finished if r["recipe"] == name])
            if metric in curve:
                axis.plot([1e-12 * value for value in curve["flops"]], curve[metric],
                          color=f"C{number % 10}", label=name,
                          linewidth=2.2 if name in PRETRAINING_RECIPES else 0.9,
                          linestyle="-" if number < 10 else "--")
        axis.set_title(f"held-out {metric.replace('_', ' ')}")
        axis.set_xlabel("10¹² operations")
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    pictures.save(figure, path)


def written() -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the contents of the results file: (recipe, seed) → result."""
    if not (FLAGS.output and os.path.exists(FLAGS.output)):
        return {}
    return {(found["recipe"], found["seed"]): found
            for found in text_files.read_object(FLAGS.output)["runs"]}


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
    files.make_directory(FLAGS.work_dir)
    benchmark_flags.make_output_folder()
    order = {name: number for number, name in enumerate(RECIPES)}  # Others come last.
    for name, seed in chosen:
        train(name, seed, config)
        # Another process may have added runs meanwhile.
        every = {**written(), (name, seed): result_of(name, seed, config)}
        results = [every[key] for key in sorted(
            every, key=lambda key: (order.get(key[0], len(order)), key))]
        write(results, config)
        print_table(summary(results))
        if FLAGS.output:
            draw(results, f"{os.path.splitext(FLAGS.output)[0]}.png")


if __name__ == "__main__":
    script.run(main)
