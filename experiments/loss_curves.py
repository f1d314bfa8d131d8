r"""Compares training in bfloat16 and float16 with float32, by held-out loss.

    python -m experiments.loss_curves --work_dir=loss_curves_runs \
        --output=experiments/results/loss_curves.json

Pretrains one small model several times with run_pretraining.py: once per type, and in
float32 with two seeds. The difference between those seeds is the noise level. A seed fixes
the initial weights and the order of the batches. Masks are stored in the records, which
all runs share, and there is no dropout. Each run evaluates held-out documents during
training. The script writes the loss curves as JSON and draws a picture beside it; it does
not measure time.

The records are created as in quickstart.py, from `--text` and `--heldout_text` (one
sentence per line, blank lines between documents). Finished runs stay in `--work_dir`; if
interrupted, run the same command again to resume.
"""

import math
import os

from absl import flags

from albert_tf import files, pictures
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.training import log
from benchmarks import benchmark_flags, runs

FLAGS = flags.FLAGS

_WIKI = os.path.join(benchmark_flags.DATA, "wiki_en")
flags.DEFINE_string("text", os.path.join(_WIKI, "train.txt"), "Text files to train on.")
flags.DEFINE_string("heldout_text", os.path.join(_WIKI, "dev.txt"),
                    "Text files to evaluate on.")
flags.DEFINE_string("work_dir", None, "Folder for records and runs.", required=True)
flags.DEFINE_list(
    "runs", ["float32:1", "float32:2", "bfloat16:1", "bfloat16:2", "float16:1"],
    "Runs to train, as TYPE:SEED.")
flags.DEFINE_integer("num_train_steps", 3000, "Training steps of each run.", lower_bound=1)
flags.DEFINE_integer("num_evaluations", 16, "Number of evaluations of each run.",
                     lower_bound=1)
flags.DEFINE_bool("train", True, "Train missing runs. If false, use the existing runs as "
                  "far as they got.")
benchmark_flags.define_output_flag()

# Large enough to use the fused CPU kernels (fast.MIN_SIZE), small enough for two cores.
MODEL = dict(
    vocab_size=4000, embedding_size=128, hidden_size=128, num_hidden_layers=3,
    num_attention_heads=4, intermediate_size=512, max_position_embeddings=64)
MAX_PREDICTIONS_PER_SEQ = 10
BATCH_SIZE = 32
# Number of held-out sequences to evaluate, in batches of BATCH_SIZE.
EVALUATED = 1536

# Evaluation metrics that are drawn and compared.
LOSSES = ("masked_lm_loss", "sentence_order_loss")
# Number of final evaluations to average; single evaluations are noisier.
LAST = 5


_LENGTHS = dict(max_seq_length=MODEL["max_position_embeddings"],
                max_predictions_per_seq=MAX_PREDICTIONS_PER_SEQ)


def records(name: str, text: str) -> str:
    """Creates the records of a text unless they exist; returns their path."""
    folder = FLAGS.work_dir
    return runs.records(
        f"{folder}/{name}.tfrecord", input_file=text, dupe_factor=1, **_LENGTHS,
        spm_model_file=runs.vocabulary(
            folder, FLAGS.text, MODEL["vocab_size"], input_sentence_size=30_000))


def train(output_dir: str, dtype: str, seed: int) -> None:
    """Trains a run, or resumes it."""
    steps = FLAGS.num_train_steps
    runs.pretrain(
        output_dir, AlbertConfig(**MODEL), steps,
        input_file=records("train", FLAGS.text),
        eval_input_file=records("heldout", FLAGS.heldout_text), **_LENGTHS,
        train_batch_size=BATCH_SIZE, eval_batch_size=BATCH_SIZE,
        max_eval_steps=EVALUATED // BATCH_SIZE, learning_rate=0.01,
        num_warmup_steps=steps // 20,
        save_checkpoints_steps=max(steps // FLAGS.num_evaluations, 1),
        iterations_per_loop=max(steps // 100, 1), keep_checkpoint_max=1,
        random_seed=seed, dtype=dtype)


def curves(output_dir: str, split: str) -> dict[str, list[float]]:
    """Returns the columns of a split: step, losses, accuracies, float16's loss scale."""
    names = ("step", *LOSSES, "masked_lm_accuracy", "sentence_order_accuracy",
             "loss_scale", "skipped_steps")
    rows = [row for row in log.read_metrics(os.path.join(output_dir, log.METRICS_FILE))
            if row["split"] == split]
    return {name: [row[name] for row in rows] for name in names if name in rows[0]}


def means(found: dict, last_step: int) -> dict[str, float]:
    """Returns the mean of each metric over the last held-out evaluations up to a step."""
    held = found["heldout"]
    end = sum(step <= last_step for step in held["step"])
    return {name: math.fsum(values[max(end - LAST, 0):end]) / min(end, LAST)
            for name, values in held.items() if name != "step"}


def print_table(results: list[dict]) -> None:
    """Prints the metrics of all runs at the end of the shortest and of the longest run."""
    ends = [found["heldout"]["step"][-1] for found in results]
    names = [name for name in results[0]["heldout"] if name != "step"]
    for last_step in sorted(set((min(ends), max(ends)))):
        print(f"\nHeld-out documents, mean of the last {LAST} evaluations up to step "
              f"{last_step}\n\n" + " " * 14 + "".join(f"{name:>26}" for name in names))
        for found, end in zip(results, ends):
            if end >= last_step:
                row = means(found, last_step)
                print(f"{found['dtype']:<9} {found['seed']:<4}"
                      + "".join(f"{row[name]:26.4f}" for name in names))


def draw(results: list[dict], path: str) -> None:
    """Draws held-out losses, and their difference from float32 with the first seed."""
    colours = {"float32": "black", "bfloat16": "tab:red", "float16": "tab:blue"}
    figure = pictures.figure(12, 8)
    axes = figure.subplots(2, len(LOSSES))
    first = results[0]["heldout"]
    for column, loss in enumerate(LOSSES):
        seeds = sorted({found["seed"] for found in results})
        for found in results:
            held = found["heldout"]
            look = dict(
                label=f"{found['dtype']}, seed {found['seed']}",
                color=colours[found["dtype"]],
                linestyle=("-", "--", ":", "-.")[seeds.index(found["seed"]) % 4])
            axes[0, column].plot(held["step"], held[loss], **look)
            reference = dict(zip(first["step"], first[loss]))
            axes[1, column].plot(
                held["step"],
                [value - reference.get(step, math.nan)
                 for step, value in zip(held["step"], held[loss])], **look)
        axes[0, column].set_title(f"held-out {loss.replace('_', ' ')}")
        axes[1, column].set_title(
            f"the same, minus that of {results[0]['dtype']}, seed {results[0]['seed']}")
        for axis in axes[:, column]:
            axis.set_xlabel("step")
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
    pictures.save(figure, path)


def main(_):
    chosen = runs.chosen_runs(FLAGS.runs, "TYPE", DTYPES)
    for name in ("text", "heldout_text"):
        files.expand_patterns(FLAGS[name].value, f"--{name}")
    files.make_directory(FLAGS.work_dir, "--work_dir")
    benchmark_flags.make_output_folder()
    results = []
    for dtype, seed in chosen:
        folder = os.path.join(FLAGS.work_dir, f"{dtype}_{seed}")
        if FLAGS.train:
            train(folder, dtype, seed)
        results.append({"dtype": dtype, "seed": seed, "train": curves(folder, "train"),
                        "heldout": curves(folder, "eval")})
    print_table(results)
    benchmark_flags.write_output(
        {"model": MODEL, "batch_size": BATCH_SIZE, "runs": results})
    if FLAGS.output:
        draw(results, f"{os.path.splitext(FLAGS.output)[0]}.png")


if __name__ == "__main__":
    script.run(main)
