"""What the layers share: all, attention, the feed-forward part, nothing (table 4).

    python -m experiments.parameter_sharing --scale=small
"""

from albert_tf.cli import script
from albert_tf.config import SHARING
from experiments.scales import Row
from experiments.tables import Experiment, Means

# E → averages, in the order of SHARING.
_PAPER = {768: (79.8, 81.6, 79.5, 82.3), 128: (80.1, 81.7, 80.2, 81.6)}
_MLM = "MLM, articles"


def _drops(means: Means, size: int) -> list[float]:
    """What masked pieces lose by sharing all, attention, ffn."""
    *shared, none = (means[f"E={size}, {sharing}"][_MLM] for sharing in SHARING)
    return [none - each for each in shared]


def _both(holds):
    return lambda means: all(holds(*_drops(means, size)) for size in _PAPER)


EXPERIMENT = Experiment(
    "parameter_sharing", "Parameter sharing (table 4)", [
        Row(f"E={size}, {sharing}", config=dict(
            embedding_size=size, parameter_sharing=sharing), scale="longer",
            paper={"average": average})
        for size, averages in _PAPER.items()
        for sharing, average in zip(SHARING, averages)],
    {"Sharing attention costs masked pieces less than sharing the feed-forward part":
        _both(lambda all_, attention, ffn: attention < ffn),
     "Sharing the feed-forward part costs most of what sharing everything does":
        _both(lambda all_, attention, ffn: ffn > all_ / 2)},
    seeds=2, notes=(
        "At the small scale what is shared does not matter yet. After 4,000 batches of 32 "
        "sequences no model is short of parameters: those with the same embeddings are "
        "0.6 points apart at most, with 0.5 million parameters or with 3.4, and those "
        "that share the most get the most gradient for each. The size of the embeddings "
        "makes two points. Two seeds (of one row so far) are 0.3 points apart. A "
        "scale that tells more must be longer: E=128 with all shared, trained for 12,000 "
        "batches of 16 with 40 % masked and the rate of --recipe=fast, knows 14.9 % of "
        "articles' pieces and has not begun to use the text around; E=768 has (23.7 % "
        "after 12,800, longer_full_depth in docs/SCHEDULES.md), in half a core-hour. "
        "Fine-tuned, all models do alike on SST-2 and none learns MRPC, "
        "68.4 % of which are of one class. The paper's models see thirty thousand times "
        "as many pieces."))


def main(_):
    EXPERIMENT.run()


if __name__ == "__main__":
    script.run(main)
