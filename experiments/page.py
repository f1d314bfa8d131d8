"""Writes docs/PAPER.md of the results there are.

    python -m experiments.page
"""

import importlib
import os
from typing import Any, Optional

from absl import flags

from albert_tf import files, text_files
from albert_tf.cli import script
from benchmarks.benchmark_flags import ROOT
from experiments import tables

FLAGS = flags.FLAGS

# In the order of the page.
NAMES = ("bert_xlarge", "parameter_counts", "model_sizes", "embedding_size",
         "parameter_sharing", "sentence_objectives", "equal_time", "more_data",
         "dropout", "layer_distances")
# Of a run's results, in seconds of a core.
_TOOK = {"core_seconds": "pretraining", "finetuning_core_seconds": "fine-tuning"}
PAGE = os.path.join(ROOT, "docs", "PAPER.md")
_HEAD = """\
# The paper's tables and figures, again

Each by one command, at the scale of two cores and at the paper's (`--scale=paper`);
`experiments/scales.py` says what the scales are. Numbers of tables are those of the
published version (arXiv 1909.11942v6), where nothing else is said. Ours are means over
seeds and half their range, orders and verdicts those of the seeds that all rows of a
table have; columns "paper" hold what the paper prints of its own models, a hundred times
larger, so that orders compare, not numbers. MLM, SOP and NSP
are accuracies in percent on held-out records of Wikipedia's articles and of SQuAD's and
RACE's dev passages. Of SOP's two answers the more frequent is right in 64.1 % of the
articles' pairs and 60.4 % of the passages', since chunks of a single sentence all count as
out of order (table 5 leaves them out: 50 %): 64 to 66 % on articles is hardly more than
nothing. SST-2, MRPC and SQuAD 1.1 (40 articles to train, 8 to test) are fine-tuned.
Parameters are in millions.

This page is made from `experiments/results` by `python -m experiments.page`.
"""


def experiment_of(name: str) -> tables.Experiment:
    return importlib.import_module(f"experiments.{name}").EXPERIMENT


def results_of(name: str, scale: str = "small") -> Optional[dict[str, Any]]:
    path = tables.results_path(name, scale)
    return text_files.read_object(path) if files.exists(path) else None


def summary() -> str:
    """What comes out of all claims at the small scale, and the time it took."""
    found = {name: results for name in NAMES if (results := results_of(name))}
    lines = ["## What comes out at the small scale", "",
             "A verdict is of the numbers alone; what it rests on, such as a single seed "
             "or a model that fails to be fine-tuned, stands below its table.", "",
             "| the paper says | |", "| --- | --- |"]
    for name, results in found.items():
        lines += [f"| {text} | {verdict} |" for text, verdict in
                  experiment_of(name).verdicts(results).items()]
    # A run that several tables have counts once.
    took = {(each["run"], part): each[part] for results in found.values()
            for each in results["rows"] for part in _TOOK if part in each}
    hours = {part: sum(seconds for (_, of), seconds in took.items() if of == part) / 3600
             for part in _TOOK}
    told = " and ".join(
        f"{hours[part]:.1f} core-hours of {what}" for part, what in _TOOK.items())
    return "\n".join([*lines, "", f"All together: {told}, for "
                      f"{len({run for run, _ in took})} models; runs that were tried, "
                      "replaced or lost are not in it.", ""])


def section(name: str) -> str:
    """An experiment's part of the page."""
    experiment = experiment_of(name)
    lines = [f"## {experiment.title}", ""]
    for scale in ("small", "paper"):
        path, found = tables.results_path(name, scale), results_of(name, scale)
        if found:
            lines += [experiment.markdown(found)]
            picture = path.removesuffix(".json") + ".png"
            if files.exists(picture):
                lines += [f"![{experiment.title}](../experiments/results/"
                          f"{os.path.basename(picture)})", ""]
    if len(lines) == 2:
        lines += [f"Not run yet: `python -m experiments.{name} --scale=small`.", ""]
    return "\n".join([*lines, *([experiment.notes, ""] if experiment.notes else [])])


def page() -> str:
    return "\n".join([_HEAD, summary(), *map(section, NAMES)]).rstrip() + "\n"


def main(_):
    files.write(PAGE, page().encode())
    print(f"Wrote {os.path.normpath(PAGE)}.")


if __name__ == "__main__":
    script.run(main)
