r"""Measures how much faster fine-tuning is in batches by length than with padding.

    python -m benchmarks.finetuning --output=benchmarks/results/finetuning.json

run_classifier.py trains ALBERT-base with random weights for some steps on SST-2 and MRPC,
in batches of 32 with three paddings:

  by length   to one of eight lengths, the script's default
  128, 512    everything to one length, as in the original implementation

Each setting runs as a command of its own. Its sequences per second are those of
metrics.jsonl after the first --skipped_steps, in which the graph of each length is traced.
"""

import os
import tempfile

from absl import app, flags

from albert_tf.config import AlbertConfig
from benchmarks import benchmark_flags, runs

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", os.path.join(benchmark_flags.DATA, "glue"),
                    "Folder of the GLUE download, with SST-2 and MRPC.")
benchmark_flags.define_spm_model_flag()
flags.DEFINE_integer("train_batch_size", 32, "Sequences per step.", lower_bound=1)
flags.DEFINE_integer("gradient_accumulation_steps", 8, "Parts of a batch: 32 sequences of "
                     "512 need about 20 GB at once.", lower_bound=1)
flags.DEFINE_integer("num_steps", 40, "Steps that are measured.", lower_bound=1)
flags.DEFINE_integer("skipped_steps", 40, "Steps before these.", lower_bound=1)
flags.DEFINE_string("config_overrides", "", "Changes of the model's shape, for a quick "
                    "look: name=value pairs with commas between them.")
benchmark_flags.define_output_flag()

TASKS = ("sst-2", "mrpc")
# Padding → flags. Longer texts are cut, so that all see the same tokens.
PADDINGS = {
    "by length": {"max_seq_length": 128, "num_length_buckets": 8},
    "padded to 128": {"max_seq_length": 128, "num_length_buckets": 1},
    "padded to 512": {"max_seq_length": 512, "num_length_buckets": 1}}


def sequences_per_second(task: str, padding: str, folder: str) -> float:
    """Trains and returns the speed after the first steps."""
    output_dir = os.path.join(folder, f"{task}_{padding}".replace(" ", "_"))
    runs.run_script(
        "run_classifier.py", task_name=task, data_dir=FLAGS.data_dir,
        output_dir=output_dir, model="base", config_overrides=FLAGS.config_overrides or None,
        spm_model_file=FLAGS.spm_model_file, do_train=True, from_scratch=True, random_seed=1,
        train_batch_size=FLAGS.train_batch_size, iterations_per_loop=FLAGS.skipped_steps,
        gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
        train_step=FLAGS.skipped_steps + FLAGS.num_steps, warmup_step=0,
        **PADDINGS[padding])
    rows = [row for row in runs.rows_of(output_dir, "train")
            if row["step"] > FLAGS.skipped_steps]
    return FLAGS.train_batch_size * rows[-1]["steps_per_second"]


def main(argv):
    del argv
    benchmark_flags.make_output_folder()
    with tempfile.TemporaryDirectory() as folder:
        results = {task: {padding: sequences_per_second(task, padding, folder)
                          for padding in PADDINGS} for task in TASKS}
    print(f"| sequences per second | {' | '.join(PADDINGS)} |\n| --- |"
          + " --- |" * len(PADDINGS))
    for task, row in results.items():
        print(f"| {task} | {' | '.join(f'{value:.2f}' for value in row.values())} |")
    benchmark_flags.write_output({
        **benchmark_flags.machine(), "results": results,
        "config": AlbertConfig.named("base").to_dict()})


if __name__ == "__main__":
    app.run(main)
