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
    squad=True)


def main(_):
    EXPERIMENT.run()


if __name__ == "__main__":
    script.run(main)
