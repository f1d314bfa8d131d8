"""Writes docs/PAPER.md from the stored results; trains nothing.

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

# In the order in which they appear on the page.
NAMES = ("bert_xlarge", "parameter_counts", "model_sizes", "embedding_size",
         "parameter_sharing", "sentence_objectives", "equal_time", "more_data",
         "dropout", "layer_distances")
# Key of a run's cost in core-seconds → its name on the page.
_TOOK = {"core_seconds": "pretraining", "finetuning_core_seconds": "fine-tuning"}
PAGE = os.path.join(ROOT, "docs", "PAPER.md")
_HEAD = """\
# Reproducing the paper's tables and figures

The models on this page have 0.3 to 12 million parameters, about 20 to 200 times fewer than
the paper's, and see 8 to 49 million tokens from 16 MB of text, the paper's about 260 billion.
Such models can show parameter counts and relative speed, since both are measured on the
published sizes. They can also show whether one change moves masked-LM accuracy in the same
direction as in the paper. They cannot show fine-tuned scores: SST-2 averages at most 80 %,
MRPC stays near its larger class and SQuAD is below 7 %, so the rows differ mostly by chance.
They cannot show effects that need long training or large models either, such as what depth
and width bring, or that a model degrades with its size. "Not reproduced" therefore means
that the effect did not appear at this size; it does not contradict the paper. Most rows
have one seed, and the tables permit comparing orders, not numbers.

## How to read the tables

Each table is produced by one command, at the scale of two CPU cores or at the paper's
(`--scale=paper`, which has not been run). `experiments/scales.py` defines the scales.

- The paper's numbers are those of the published version (arXiv 1909.11942v6), unless a
  heading says otherwise. Columns that begin with "paper" show them.
- Our numbers are means over seeds ± half their range. Orders and verdicts use the seeds
  that all rows of a table have.
- MLM, SOP and NSP are accuracies in percent: on masked tokens, sentence order and next
  sentence. They are measured on held-out Wikipedia articles and on the passages of SQuAD's
  and RACE's dev sets.
- For SOP, always giving the more frequent answer scores 64.1 % on articles and 60.4 % on
  passages, because chunks of a single sentence count as swapped. The 64 to 66 % in most
  tables are therefore hardly better than a constant answer. Table 5 leaves such chunks
  out, and chance is 50 % there.
- SST-2, MRPC and SQuAD 1.1 (40 articles to train on, 8 to test on) are fine-tuned scores.
- Parameters are in millions.

All runs used one or two cores of an Intel Xeon with AMX or an AMD EPYC with AVX-512 and
bfloat16 instructions. `python -m experiments.page` generates this page from
`experiments/results`.

`--objective=permutation` is not part of this paper: it is sections 2.2 to 2.4 of XLNet's (Yang et
al., 2019), in `albert_tf/training/permutation.py`. [SCHEDULES.md](SCHEDULES.md#orders-and-masks)
compares it with ALBERT's objective.
"""


def experiment_of(name: str) -> tables.Experiment:
    return importlib.import_module(f"experiments.{name}").EXPERIMENT


def results_of(name: str, scale: str = "small") -> Optional[dict[str, Any]]:
    path = tables.results_path(name, scale)
    return text_files.read_object(path) if files.exists(path) else None


def summary() -> str:
    """Returns the verdicts on all claims at the small scale, and the total cost."""
    found = {name: results for name in NAMES if (results := results_of(name))}
    lines = ["## Verdicts at the small scale", "",
             "A verdict follows from the numbers alone. The text below each table says "
             "what it rests on, for example on a single seed or on a model that failed "
             "to fine-tune.", "",
             "| claim of the paper | at the small scale |", "| --- | --- |"]
    for name, results in found.items():
        lines += [f"| {text} | {verdict} |" for text, verdict in
                  experiment_of(name).verdicts(results).items()]
    # Count a run once even if several tables use it.
    took = {(each["run"], part): each[part] for results in found.values()
            for each in results["rows"] for part in _TOOK if part in each}
    hours = {part: sum(seconds for (_, of), seconds in took.items() if of == part) / 3600
             for part in _TOOK}
    told = " and ".join(
        f"{hours[part]:.1f} core-hours of {what}" for part, what in _TOOK.items())
    return "\n".join([*lines, "", f"Total cost: {told}, for "
                      f"{len({run for run, _ in took})} models. Trials and runs that were "
                      "replaced or lost are not included.", ""])


def section(name: str) -> str:
    """Returns the section of one experiment."""
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
