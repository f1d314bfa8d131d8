"""BERT-large and ALBERT-xxlarge, trained for as many steps, and as long (table 6).

    python -m experiments.equal_time --scale=small

As long is as many core-seconds at the small scale, as many seconds at the paper's.
First both are trained for as many steps, then BERT-large anew for what the other took.
"""

from albert_tf.cli import script
from experiments.scales import Row
from experiments.tables import Experiment

EXPERIMENT = Experiment(
    "equal_time", "Equal time (table 6)", [
        Row("BERT-large", "bert-large", paper={
            "steps, thousands": 125, "average": 85.2}),
        Row("ALBERT-xxlarge", "xxlarge", paper={
            "steps, thousands": 125, "hours": 32, "average": 88.7}),
        Row("BERT-large, as long", "bert-large", as_long_as="xxlarge", paper={
            "steps, thousands": 400, "hours": 34, "average": 87.2})],
    {"In the same time ALBERT-xxlarge gets better": lambda means: (
        means["ALBERT-xxlarge"]["average"] > means["BERT-large, as long"]["average"])},
    squad=True, notes=(
        "At this scale a step of ALBERT-xxlarge (12 passes, 256 wide) takes what one of "
        "BERT-large does (24 layers, 128 wide), so that as long is 3,827 steps of 4,000, "
        "where the paper has 3.2 times as many. The order of the averages comes out by "
        "SQuAD alone, 5.5 against 1.4 %, and SST-2 (78.0 and 78.2) has none; in masked "
        "pieces BERT-large is two points ahead, whose embeddings are four times as wide "
        "(table 3). That BERT-large of 4,000 steps fails at SST-2 and that of 3,827 does "
        "not says how far chance goes in fine-tuning. One seed."))


def main(_):
    EXPERIMENT.run()


if __name__ == "__main__":
    script.run(main)
