"""Runs a table or figure of the paper, checks the paper's claims and writes the results.

After each run the results so far are written to --results_dir: a JSON file, a Markdown
table with the paper's numbers, and a picture. docs/PAPER.md links them.
"""

import functools
import itertools
import json
import math
import os
import subprocess
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from absl import flags

from albert_tf import files, pictures, text_files
from albert_tf.errors import InputError
from benchmarks import benchmark_flags
from experiments.rows import filled, mean, measure, scale
from experiments.scales import Row

FLAGS = flags.FLAGS

_HERE = os.path.dirname(os.path.abspath(__file__))


def draw_curves(found: Mapping[str, Any], path: str) -> None:
    """Draws training loss and held-out masked-LM accuracy over the steps."""
    figure = pictures.figure(12, 4.5)
    names = list(dict.fromkeys(each["row"] for each in found["rows"]))
    for axis, part, metric in zip(figure.subplots(1, 2), ("training", "curve"),
                                  ("masked_lm_loss", "masked_lm_accuracy")):
        for each in found["rows"]:
            first = each is next(r for r in found["rows"] if r["row"] == each["row"])
            axis.plot(each[part]["step"], each[part][metric],
                      color=f"C{names.index(each['row']) % 10}",
                      label=each["row"] if first else None)
        axis.set_title(f"{'training' if part == 'training' else 'held-out articles'}: "
                       f"{metric.replace('_', ' ')}")
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    pictures.save(figure, path)


Means = Mapping[str, Mapping[str, float]]  # row → score → mean over its seeds


class Experiment(NamedTuple):
    """A table or figure.

    Attributes:
      name: name in experiments.paper and of the result files.
      rows: rows of the table.
      claims: sentence of the paper → function that checks it on the mean scores.
      seeds: number of seeds.
      objectives: sentence objectives to measure for every row besides its own.
      squad: whether SQuAD is fine-tuned at the small scale.
      trains: whether the rows need training.
      measure: (row, seed, objectives, tasks) → entry in the results, with "scores".
      draw: (results, path of a PNG) → None; None draws nothing.
    """

    name: str
    rows: Sequence[Row]
    claims: Mapping[str, Callable[[Means], bool]] = {}
    seeds: int = 1
    objectives: Sequence[str] = ()
    squad: bool = False
    trains: bool = True
    measure: Callable[..., dict[str, Any]] = measure
    draw: Optional[Callable[[Mapping[str, Any], str], None]] = draw_curves

    def chosen_tasks(self) -> list[str]:
        if FLAGS.finetune is not None:
            return [task for task in FLAGS.finetune if task]
        return [task for task in scale().tasks if task != "squad" or self.squad]

    def run(self) -> None:
        """Trains and measures what is missing; writes the results after each row."""
        commit()  # Cached now, because the working tree may change during the run.
        if self.trains:
            check(self)
        files.make_directory(FLAGS.results_dir)
        tasks = self.chosen_tasks()
        rows = {row.name: row for row in self.rows}
        found: list[dict[str, Any]] = []
        for seed in range(1, (FLAGS.num_seeds or self.seeds) + 1):
            for name in FLAGS.row or rows:
                measured = self.measure(rows[name], seed, self.objectives, tasks)
                found.append({"commit": commit(), **benchmark_flags.machine(), **measured,
                              "row": name, "seed": seed, "tasks": tasks})
                self.write({**self.told(), "rows": found})

    def told(self) -> dict[str, Any]:
        """Returns the metadata of the results: the command that reproduces them (without
        folders), commit, scale and machine."""
        return {"command": " ".join([
                    "python -m", "experiments.paper", self.name, f"--scale={FLAGS.scale}",
                    *(FLAGS[name].serialize() for name in (
                        "num_train_steps", "finetune", "run_flags", "num_seeds")
                      if FLAGS[name].value != FLAGS[name].default)]),
                "commit": commit(), "scale": FLAGS.scale, **benchmark_flags.machine()}

    def write(self, found: Mapping[str, Any]) -> None:
        path = results_path(self.name, FLAGS.scale)
        # Write one line per run.
        head = json.dumps({**found, "rows": ["ROWS"]}, indent=1)
        files.write(path, head.replace('"ROWS"', ",\n  ".join(
            map(json.dumps, found["rows"]))).encode() + b"\n")
        prefix = path.removesuffix(".json")
        files.write(f"{prefix}.md", self.markdown(found).encode())
        if self.draw:
            self.draw(found, f"{prefix}.png")
        print(f"Wrote {path}.\n\n{self.markdown(found)}", flush=True)

    def scores(self, found: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
        """Returns row → score → values of its seeds, for the rows that have results."""
        scores = {row.name: {} for row in self.rows if any(
            each["row"] == row.name for each in found["rows"])}
        for each in found["rows"]:
            for metric, value in each["scores"].items():
                scores[each["row"]].setdefault(metric, []).append(value)
        return scores

    def means(self, found: Mapping[str, Any]) -> Means:
        """Returns the mean scores over the seeds that all rows have. A further seed of one
        row would otherwise look like a difference between rows."""
        seeds = [{each["seed"] for each in found["rows"] if each["row"] == name}
                 for name in self.scores(found)]
        common = set.intersection(*seeds) if seeds else set()
        scores = self.scores({"rows": [
            each for each in found["rows"] if each["seed"] in common]})
        return {name: {metric: mean(values) for metric, values in own.items()}
                for name, own in scores.items()}

    def verdicts(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Returns the verdict on each claim."""
        means = self.means(found)
        return {text: _verdict(claim, means) for text, claim in self.claims.items()}

    def markdown(self, found: Mapping[str, Any]) -> str:
        """Returns the table with the paper's numbers, the verdicts and the cost."""
        rows, scores = {row.name: row for row in self.rows}, self.scores(found)
        ours = list(dict.fromkeys(itertools.chain.from_iterable(scores.values())))
        papers = list(dict.fromkeys(itertools.chain.from_iterable(
            row.paper for row in self.rows)))
        lines = [_line(["", *ours, *(f"paper: {name}" for name in papers)]),
                 _line(["---"] * (1 + len(ours) + len(papers)))]
        for name, own in scores.items():
            paper = rows[name].paper
            # Speeds can be small, and have two decimals.
            lines.append(_line([name, *(
                shown(own.get(metric, []), 2 if metric.startswith("speed") else 1)
                for metric in ours),
                                *(str(paper.get(key, "")) for key in papers)]))
        return "\n".join([
            *lines, "", *_orders(self.means(found), rows),
            *(f"- {text}: {verdict}." for text, verdict in self.verdicts(found).items()),
            "", _took(found, [name for name in rows if name not in scores]), ""])


def check(experiment: Experiment) -> None:
    """Raises InputError for inputs that would otherwise fail after hours."""
    made = scale()
    names = [row.name for row in experiment.rows]
    for name in FLAGS.row:
        if name not in names:
            raise InputError(f"--row: '{name}' is not a row of {experiment.name}; its "
                             f"rows are {'; '.join(names)}.")
    unknown = set(experiment.chosen_tasks()) - made.tasks.keys()
    if unknown:
        raise InputError(f"--finetune: '{min(unknown)}' is not among the tasks of "
                         f"--scale={FLAGS.scale}: {', '.join(made.tasks)}.")
    for pair in FLAGS.run_flags:
        if "=" not in pair:
            raise InputError(f"--run_flags: '{pair}' is not of the form NAME=VALUE.")
    texts = {name: {os.path.basename(path): files.size(path)
                    for path in files.expand_patterns(FLAGS[name].value, f"--{name}")}
             for name in ("text", "heldout_text")}
    needed = ["{data}/squad/dev-v1.1.json", "{data}/race/dev", *(
        value for task in experiment.chosen_tasks()
        for value in made.tasks[task][1].values() if str(value).startswith("{data}"))]
    for path in needed:
        if not files.exists(filled(path)):
            raise InputError(f"--data_dir={FLAGS.data_dir}: {filled(path)} is missing.")
    files.make_directory(FLAGS.work_dir)
    kept = os.path.join(FLAGS.work_dir, "made_of.json")
    made_of = {"scale": FLAGS.scale, **texts}
    if files.exists(kept) and text_files.read_object(kept) != made_of:
        raise InputError(f"--work_dir={FLAGS.work_dir} has runs with a different "
                         "--scale, --text or --heldout_text; pass a new folder.")
    text_files.write_json(kept, made_of)


@functools.cache
def commit() -> str:
    """Returns the commit of the code, with "+" if files are modified; "" without git."""
    def git(*words):
        return subprocess.run(["git", "-C", _HERE, *words], capture_output=True,
                              text=True, check=False).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + "+" * bool(
        git("status", "--porcelain", "--untracked-files=no", "--", ":/*.py"))


def results_path(name: str, of: str) -> str:
    """Returns the path of the results. Runs with --num_train_steps or --row have their own
    files, so that they do not change the table."""
    return os.path.join(FLAGS.results_dir, "_".join([
        name, *([of] if of != "small" else []), *(["rows"] if FLAGS.row else []),
        *([f"{FLAGS.num_train_steps}steps"] if FLAGS.num_train_steps else [])]) + ".json")


def shown(values: Sequence[float], digits: int = 1) -> str:
    """Returns a mean and, for several seeds, half their range."""
    if not values:
        return ""
    text = f"{mean(values):.{digits}f}"
    spread = (max(values) - min(values)) / 2
    return text if len(values) == 1 or not spread else f"{text} ± {spread:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _verdict(claim: Callable[[Means], bool], means: Means) -> str:
    try:
        return "reproduced" if claim(means) else "not reproduced"
    except KeyError:
        return "not measured yet"


def _orders(means: Means, rows: Mapping[str, Row]) -> list[str]:
    """Returns the rows from best to worst: by the paper's average, by ours, and by our
    masked-LM accuracy."""
    lines = []
    for whose, key, values in (
            ("paper", "average", {name: rows[name].paper for name in means}),
            ("ours", "average", means), ("ours", "MLM, SQuAD+RACE", means)):
        if len(means) > 1 and all(key in own for own in values.values()):
            best = sorted(values, key=lambda name: -values[name][key])
            lines.append(f"- Order by {key}, {whose}: {' > '.join(best)}.")
    return lines


def _took(found: Mapping[str, Any], missing: Sequence[str]) -> str:
    seeds = sorted({each["seed"] for each in found["rows"]})
    commits = ", ".join(dict.fromkeys(
        each.get("commit", found["commit"]) for each in found["rows"]))
    hours = {what: math.fsum(each.get(key, 0) for each in found["rows"]) / 3600
             for what, key in (("pretraining", "core_seconds"),
                               ("fine-tuning", "finetuning_core_seconds"))}
    steps = sorted({each["steps"] for each in found["rows"] if "steps" in each})
    return " ".join([
        f"`{found['command']}`", f"(commit {commits})" + (
            f", seeds {', '.join(map(str, seeds))}; "
            f"{', '.join(f'{n:,}' for n in steps)} steps" if steps else "") + (
            "".join(f"; {what} took {value:.1f} core-hours"
                    for what, value in hours.items() if value))
        + (f"; not run yet: {'; '.join(missing)}" if missing else "") + "."])
