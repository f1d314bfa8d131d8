"""BERT and ALBERT of all sizes: scores and speed (table 2; 3 in the first version).

    python -m experiments.model_sizes --scale=small

Speed is that of a whole training step of the published sizes, on random pieces, in
sequences a second relative to BERT-large: measured on this machine in seconds of its
cores, by the operations of the step, by benchmarks/cost_model.py for 64 chips of TPU
v3, and what the paper measured on TPUs. On one machine nothing is sent between chips,
which is what sharing saves there.
"""

import os
from typing import Any

from albert_tf import files, text_files
from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from benchmarks import cost_model, runs
from experiments import rows
from experiments.rows import FLAGS
from experiments.scales import Row
from experiments.tables import Experiment

# Size → name and average.
_PAPER = {
    "bert-base": ("BERT-base", 82.3), "bert-large": ("BERT-large", 85.2),
    "base": ("ALBERT-base", 80.1), "large": ("ALBERT-large", 82.4),
    "xlarge": ("ALBERT-xlarge", 85.5), "xxlarge": ("ALBERT-xxlarge", 88.7)}
_REFERENCE = "bert-large"


def step_seconds(size: str) -> float:
    """Of this machine's cores, for a step of a published size."""
    path = os.path.join(FLAGS.work_dir, f"step_{size}.json")
    if not files.exists(path):
        runs.run_script("benchmarks.training", model=size, contestants="ours",
                        output=path, **rows.scale().step)
    return text_files.read_object(path)["results"][0]["seconds"]["ours"]["cores"]


def _predicted(size: str) -> float:
    return cost_model.step_cost(
        AlbertConfig.named(size), cost_model.Batch(64, 512, 77), cost_model.CHIPS[0],
        64).seconds


def _operations(size: str) -> float:
    return rows.operations(AlbertConfig.named(size))


def measure(row: Row, *given) -> dict[str, Any]:
    found = rows.measure(row, *given)
    for name, cost in (("speed", step_seconds), ("speed, operations", _operations),
                       ("speed, cost model", _predicted)):
        found["scores"][name] = cost(_REFERENCE) / cost(row.size)
    return found


def _falls(key: str, *sizes: str):
    """Whether a score falls from each size to the next."""
    names = [_PAPER[size][0] for size in sizes]
    return lambda means: all(means[more][key] > means[less][key]
                             for more, less in zip(names, names[1:]))


EXPERIMENT = Experiment(
    "model_sizes", "BERT and ALBERT of all sizes (table 2)", [
        Row(name, size, paper={"average": average,
                               "speed": cost_model.PAPER_SPEED[size]})
        for size, (name, average) in _PAPER.items()],
    {"ALBERT gets better with its size": _falls(
        "MLM, SQuAD+RACE", "xxlarge", "xlarge", "large", "base"),
     "ALBERT-xxlarge is better than BERT-large": _falls(
         "average", "xxlarge", "bert-large"),
     "Speeds are in the paper's order": _falls(
         "speed", "base", "bert-base", "large", "bert-large", "xlarge", "xxlarge")},
    squad=True, measure=measure, notes=(
        "Speed comes out: the order is the paper's, each size's relation to BERT-large 0.6 "
        "to 0.9 of the paper's; operations alone would make ALBERT's two thirds to three "
        "quarters of what they are. Sizes do not come out: ALBERT-xxlarge is the best "
        "ALBERT, by half a point, but 24 passes are worse than 12, and those of width 192 "
        "the worst. At one rate of pretraining, 0.004, deeper models learn later, and in "
        "4,000 steps none comes to where depth is for something: longer runs of such "
        "models begin to use the text around after some 6,000 (docs/SCHEDULES.md). Until "
        "then embeddings count, and BERT's at this scale are as wide as its layers, 128 "
        "numbers, ALBERT's 32. So does chance: another seed of ALBERT-large, trained to "
        "see its layers (figure 2), has 8.6 % in place of 11.8 %. "
        "That ALBERT-xxlarge's average is above BERT-large's says little: "
        "BERT-large, which knows more masked pieces, falls to 70.6 % on SST-2 at the one "
        "rate that all are fine-tuned with (another one, of 3,827 steps, has 78.2, table "
        "6), and SQuAD is a few percent for all. "
        "ALBERT-base is the model of table 3's E=128 with all shared, trained and "
        "fine-tuned once more on another processor: SST-2 differs by 1.7 points, as much "
        "as any two sizes do but for BERT-large. One seed."))


def main(_):
    EXPERIMENT.run()


if __name__ == "__main__":
    script.run(main)
