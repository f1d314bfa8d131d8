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

import json
import math
import os

from absl import flags

from albert_tf import files, pictures
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.training import log
from benchmarks.runs import ROOT, chosen_runs, run_script

FLAGS = flags.FLAGS

_WIKI = os.path.join(ROOT, "..", "shared", "data", "wiki_en")
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
flags.DEFINE_string("output", "", "JSON file to write the curves to.")

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


def make_records(folder: str) -> None:
    """Creates vocabulary, config and records unless they exist."""
    if not os.path.exists(f"{folder}/spm.model"):
        run_script("train_sentencepiece.py", input_file=FLAGS.text,
                   output_prefix=f"{folder}/spm", vocab_size=MODEL["vocab_size"],
                   input_sentence_size=30_000)
    for name, text in (("train", FLAGS.text), ("heldout", FLAGS.heldout_text)):
        if not os.path.exists(f"{folder}/{name}.tfrecord"):
            run_script(
                "create_pretraining_data.py", input_file=text,
                output_file=f"{folder}/{name}.tfrecord",
                spm_model_file=f"{folder}/spm.model",
                max_seq_length=MODEL["max_position_embeddings"],
                max_predictions_per_seq=MAX_PREDICTIONS_PER_SEQ, dupe_factor=1)
    with files.atomic_write(f"{folder}/albert_config.json") as stream:
        stream.write(AlbertConfig(**MODEL).to_json().encode())


def train(folder: str, dtype: str, seed: int) -> list[dict]:
    """Trains a run, or resumes it, and returns the rows of its metrics."""
    from albert_tf.training import run_folder  # Imports TensorFlow.

    steps = FLAGS.num_train_steps
    output_dir = f"{folder}/{dtype}_{seed}"
    done = checkpoint_of(output_dir, best=False)
    if FLAGS.train and (not done or run_folder.step_of(done) < steps):
        run_script(
            "run_pretraining.py", input_file=f"{folder}/train.tfrecord",
            eval_input_file=f"{folder}/heldout.tfrecord", output_dir=output_dir,
            albert_config_file=f"{folder}/albert_config.json",
            max_seq_length=MODEL["max_position_embeddings"],
            max_predictions_per_seq=MAX_PREDICTIONS_PER_SEQ,
            train_batch_size=BATCH_SIZE, eval_batch_size=BATCH_SIZE,
            max_eval_steps=EVALUATED // BATCH_SIZE,
            learning_rate=0.01, num_train_steps=steps, num_warmup_steps=steps // 20,
            save_checkpoints_steps=max(steps // FLAGS.num_evaluations, 1),
            iterations_per_loop=max(steps // 100, 1), keep_checkpoint_max=1,
            random_seed=seed, dtype=dtype)
    return log.read_metrics(os.path.join(output_dir, log.METRICS_FILE))


def curves(rows: list[dict], split: str) -> dict[str, list[float]]:
    """Returns the columns of a split: step, losses, accuracies, float16's loss scale."""
    names = ("step", *LOSSES, "masked_lm_accuracy", "sentence_order_accuracy",
             "loss_scale", "skipped_steps")
    chosen = [row for row in rows if row["split"] == split]
    return {name: [row[name] for row in chosen] for name in names if name in chosen[0]}


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
    runs = chosen_runs(FLAGS.runs, "TYPE", DTYPES)
    for name in ("text", "heldout_text"):
        files.expand_patterns(FLAGS[name].value, f"--{name}")
    files.make_directory(FLAGS.work_dir, "--work_dir")
    make_records(FLAGS.work_dir)
    results = []
    for dtype, seed in runs:
        rows = train(FLAGS.work_dir, dtype, seed)
        results.append({"dtype": dtype, "seed": seed, "train": curves(rows, "train"),
                        "heldout": curves(rows, "eval")})
    print_table(results)
    if FLAGS.output:
        with files.atomic_write(FLAGS.output) as stream:
            stream.write(json.dumps(
                {"model": MODEL, "batch_size": BATCH_SIZE, "runs": results}
            ).encode() + b"\n")
        draw(results, f"{os.path.splitext(FLAGS.output)[0]}.png")


if __name__ == "__main__":
    script.run(main)
