"""Writes docs/PAPER.md of the results there are.

    python -m experiments.page
"""

import importlib
import os
from typing import Any

from absl import flags

from albert_tf import files
from albert_tf.cli import script
from benchmarks.benchmark_flags import ROOT
from experiments import tables

FLAGS = flags.FLAGS

# In the order of the page.
NAMES = ("bert_xlarge", "parameter_counts", "model_sizes", "embedding_size",
         "parameter_sharing", "sentence_objectives", "equal_time", "more_data",
         "dropout", "layer_distances")
PAGE = os.path.join(ROOT, "docs", "PAPER.md")
_HEAD = """\
# The paper's tables and figures, again

Each by one command, at the scale of two cores and at the paper's (`--scale=paper`);
`experiments/scales.py` says what the scales are. Numbers of tables are those of the
published version (arXiv 1909.11942v6), where nothing else is said. Ours are means over
seeds and half their range; columns "paper" hold what the paper prints of its own
models, a hundred times larger, so that orders compare, not numbers. MLM, SOP and NSP
are accuracies in percent on held-out records of Wikipedia's articles and of SQuAD's and
RACE's dev passages; SST-2, MRPC and SQuAD 1.1 (40 articles to train, 8 to test) are
fine-tuned. Parameters are in millions.

This page is made from `experiments/results` by `python -m experiments.page`.
"""


def section(name: str) -> str:
    """An experiment's part of the page."""
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    lines = [f"## {experiment.title}", ""]
    for scale in ("small", "paper"):
        path = tables.results_path(name, scale)
        if files.exists(path):
            found: dict[str, Any] = files.read_object(path)
            lines += [experiment.markdown(found)]
            picture = path.removesuffix(".json") + ".png"
            if files.exists(picture):
                lines += [f"![{experiment.title}](../experiments/results/"
                          f"{os.path.basename(picture)})", ""]
    if len(lines) == 2:
        lines += [f"Not run yet: `python -m experiments.{name} --scale=small`.", ""]
    return "\n".join([*lines, *([experiment.notes, ""] if experiment.notes else [])])


def page() -> str:
    return "\n".join([_HEAD, *map(section, NAMES)]).rstrip() + "\n"


def main(_):
    files.write(PAGE, page().encode())
    print(f"Wrote {os.path.normpath(PAGE)}.")


if __name__ == "__main__":
    script.run(main)
