r"""Trains, evaluates and fine-tunes a row of a table with the project's own scripts.

Each row is run once per seed, in a folder of --work_dir whose name describes the row. A
row of two tables is therefore trained once. If interrupted, the same command resumes. At
the paper's scale, pass the flags of an accelerator in --run_flags:

    python -m experiments.paper sentence_objectives --scale=paper \
        --work_dir=paper_runs \
        --text='corpus/train-*.txt' --heldout_text=corpus/heldout.txt \
        --data_dir=tasks --run_flags=tpu=my-tpu,gradient_accumulation_steps=8

Intrinsic scores are the accuracy on masked tokens (MLM) and on sentences (SOP, NSP). They
are measured on records of the row's own objective, created from held-out articles and, as
in section 4.2.1, from the passages of SQuAD's and RACE's dev sets.
"""

import itertools
import json
import math
import os
import zlib
from typing import Any, Callable, Iterator, Optional, Sequence

from absl import flags

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.config import AlbertConfig
from albert_tf.modeling.parameter_count import count_parameters
from benchmarks import benchmark_flags, runs
from experiments.scales import OWN, Row, SCALES, Scale, config_of, run_name

FLAGS = flags.FLAGS

_WIKI = os.path.join(benchmark_flags.DATA, "wiki_en")
flags.DEFINE_enum("scale", "small", list(SCALES),
                  "small: for two cores; paper: the settings of section 4.1; "
                  "tiny: for tests.")
flags.DEFINE_string("work_dir", os.path.join("output", "paper"),
                    "Folder for records and runs, shared by all experiments.")
flags.DEFINE_string("text", os.path.join(_WIKI, "train.txt"), "Text files to train on.")
flags.DEFINE_string("heldout_text", os.path.join(_WIKI, "dev.txt"),
                    "Text files to evaluate on.")
flags.DEFINE_string("data_dir", benchmark_flags.DATA,
                    "Folder with the subfolders glue, squad and race.")
flags.DEFINE_string("results_dir", os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "results"), "Folder for the results.")
flags.DEFINE_multi_string("row", [], "Name of a row to run instead of all rows; repeat "
                          "the flag for several rows. The names of the result files say "
                          "so.")
flags.DEFINE_integer("num_train_steps", None, "Training steps, instead of the scale's; the "
                     "names of the result files include it.", lower_bound=1)
flags.DEFINE_integer("num_seeds", None, "Number of seeds, instead of the experiment's.",
                     lower_bound=1)
flags.DEFINE_list("finetune", None, "Fine-tuning tasks, instead of the experiment's; "
                  "'' for none.")
flags.DEFINE_list("run_flags", [], "Further flags for run_pretraining.py and for "
                  "fine-tuning, such as tpu=NAME,dtype=bfloat16.")

OBJECTIVES = {"order": "SOP", "next": "NSP"}
EVALUATIONS = 16  # per run


def own_scale(row: Optional[Row]) -> str:
    """Returns the scale that a row uses instead of --scale=small, or ""."""
    return row.scale if row and FLAGS.scale == "small" else ""


def scale(row: Optional[Row] = None) -> Scale:
    """Returns the scale of a row, or that of --scale."""
    own = own_scale(row)
    chosen = OWN[own] if own else SCALES[FLAGS.scale]
    return chosen._replace(steps=FLAGS.num_train_steps or chosen.steps)


# ---- text and records -------------------------------------------------------


def articles(flag: str) -> Iterator[list[str]]:
    """Yields the articles of a flag's text files, each as a list of lines."""
    lines = itertools.chain.from_iterable(
        [*(line for _, line in text_files.read_lines(name)), ""]
        for name in files.expand_patterns(FLAGS[flag].value, f"--{flag}"))
    return (list(article) for blank, article in itertools.groupby(
        lines, lambda line: not line.strip()) if not blank)


def _text(share: float) -> str:
    """Returns the path of the training text: all of it, or every N-th article."""
    path = os.path.join(FLAGS.work_dir, f"text{share:g}.txt")
    if share == 1:
        return FLAGS.text
    if not os.path.exists(path):
        with files.atomic_write(path) as stream:
            for article in itertools.islice(articles("text"), 0, None, round(1 / share)):
                stream.write(("\n".join(article) + "\n\n").encode())
    return path


def _passages() -> str:
    """Writes the passages of SQuAD's and RACE's dev sets as text; returns the paths."""
    squad = text_files.read_object(os.path.join(FLAGS.data_dir, "squad/dev-v1.1.json"))
    articles = os.path.join(FLAGS.work_dir, "squad.jsonl")
    files.write(articles, "".join(json.dumps({"article": "\n\n".join(dict.fromkeys(
        paragraph["context"] for paragraph in article["paragraphs"]))}) + "\n"
        for article in squad["data"]).encode())
    inputs = {"squad": articles,
              "race": os.path.join(FLAGS.data_dir, "race/dev/*/*.txt")}
    paths = {name: os.path.join(FLAGS.work_dir, f"{name}.txt") for name in inputs}
    for name, path in paths.items():
        if not os.path.exists(path):
            runs.run_script("prepare_corpus.py", input_format="jsonl", output_file=path,
                            json_field="article", input_file=inputs[name])
    return ",".join(paths.values())


# Name of a held-out text → function that returns its path.
HELDOUT: dict[str, Callable[[], str]] = {
    "articles": lambda: FLAGS.heldout_text, "SQuAD+RACE": _passages}

# Held-out records have one copy of the text and mask the paper's share of tokens.
_HELDOUT_RECORDS = {"dupe_factor": 1, "masked_lm_prob": 0.15}


def records(row: Row, heldout: str = "") -> str:
    """Creates records of a row's objective and scale, for training or evaluation."""
    name = _joined(heldout or f"text{row.text:g}", row.sentence_objective, own_scale(row))
    return runs.records(
        os.path.join(FLAGS.work_dir, f"{name}.tfrecord"),
        input_file=HELDOUT[heldout]() if heldout else _text(row.text),
        spm_model_file=vocabulary(), sentence_objective=row.sentence_objective,
        **{**scale(row).records, **(_HELDOUT_RECORDS if heldout else {})})


def _joined(*words: str) -> str:
    """Joins words into the name of a file or folder."""
    return "_".join(filter(None, words)).replace("+", "_")


def vocabulary() -> str:
    return runs.vocabulary(FLAGS.work_dir, FLAGS.text, AlbertConfig(
        **scale().config).vocab_size)


def split_squad() -> None:
    """Splits SQuAD 1.1's dev set: the last sixth of its articles becomes the test set."""
    paths = [os.path.join(FLAGS.work_dir, f"squad_{part}.json")
             for part in ("train", "test")]
    if not all(map(os.path.exists, paths)):
        found = text_files.read_object(
            os.path.join(FLAGS.data_dir, "squad/dev-v1.1.json"))
        cut = len(found["data"]) - max(len(found["data"]) // 6, 1)
        for path, part in zip(paths, (slice(cut), slice(cut, None))):
            text_files.write_json(path, {**found, "data": found["data"][part]})


# ---- one row ---------------------------------------------------------------


def _lengths(row: Row) -> dict[str, int]:
    made = scale(row).records
    return {name: made[name] for name in ("max_seq_length", "max_predictions_per_seq")}


def _evaluation(row: Row) -> dict[str, Any]:
    return {**_lengths(row), "eval_batch_size": 64, "max_eval_steps": scale(row).evaluated}


def _run_flags() -> dict[str, Any]:
    return {**scale().computation,
            **dict(pair.split("=", 1) for pair in FLAGS.run_flags)}


def steps_of(row: Row, seed: int) -> int:
    """Returns the number of training steps of a row.

    A row with `as_long_as` gets as many steps as take the time of that size. The time of
    a step is measured on finished runs of both or, without such, derived from operations.
    """
    steps = scale(row).steps
    if not row.as_long_as:
        return steps
    both = [row._replace(as_long_as="", size=size)
            for size in (row.size, row.as_long_as)]
    own, other = (runs.cost(train(each, seed)).get(scale().clock) for each in both)
    if not (own and other):
        own, other = (operations(config_of(each, scale())) for each in both)
    return max(round(steps * other / own), 1)


def operations(config: AlbertConfig) -> float:
    """Returns the operations of a training step's matrix products at --scale."""
    from benchmarks.contestants import step_flops

    return step_flops(config, 1, *_lengths(Row("")).values())


def named(row: Row, seed: int) -> dict[str, str]:
    """Returns the identity of a run: its name and a checksum of its scale and flags."""
    made = scale(row)
    return {"run": _joined(run_name(row, seed, made, steps_of(row, seed)),
                           own_scale(row)),
            "settings": f"{zlib.crc32(repr((made, FLAGS.run_flags)).encode()):08x}"}


def train(row: Row, seed: int) -> str:
    """Trains a row unless that is done, and returns the folder of the run."""
    made, steps = scale(row), steps_of(row, seed)
    folder = os.path.join(FLAGS.work_dir, named(row, seed)["run"])
    runs.pretrain(
        folder, config_of(row, made), steps, input_file=records(row),
        eval_input_file=records(row, "articles"),
        **{**_evaluation(row), "num_warmup_steps": round(made.warmup * steps),
           "save_checkpoints_steps": max(steps // EVALUATIONS, 1),
           "iterations_per_loop": max(steps // 100, 1), "keep_checkpoint_max": 1,
           "random_seed": seed, **made.batches, **_run_flags()})
    return folder


def evaluate(folder: str, row: Row, heldout: str) -> dict[str, float]:
    """Returns a run's accuracies in percent on held-out records of a row's kind, which
    may differ from the kind it was trained on."""
    objective = row.sentence_objective
    found = runs.scores(
        "run_pretraining.py", os.path.join(folder, _joined(heldout, objective)),
        do_train="false", do_eval="true",
        init_checkpoint=checkpoint_of(folder, best=False),
        albert_config_file=f"{folder}.config.json",
        eval_input_file=records(row, heldout), **{**_evaluation(row), **_run_flags()})
    return {name: 100 * found[key] for name, key in (
        ("MLM", "masked_lm_accuracy"),
        (OBJECTIVES.get(objective), "sentence_order_accuracy")) if key in found}


def finetune(folder: str, task: str, seed: int) -> float:
    """Fine-tunes a run on a task and returns the score in percent. SQuAD's score is the
    mean of F1 and exact match."""
    script, given = scale().tasks[task]
    if task == "squad":
        split_squad()
    found = runs.scores(
        script, os.path.join(folder, task), do_train="true", do_eval="true",
        init_checkpoint=checkpoint_of(folder, best=False), random_seed=seed,
        spm_model_file=vocabulary(), **{
            **{name: filled(value) for name, value in given.items()}, **_run_flags()})
    if "accuracy" in found:
        return 100 * found["accuracy"]
    return mean([found["f1"], found.get("exact_match", found.get("exact"))])


def filled(value: Any) -> Any:
    """Fills the folders into the value of a task's flag."""
    return value.format(data=FLAGS.data_dir, work=FLAGS.work_dir) if isinstance(
        value, str) else value


def parameters(config: AlbertConfig) -> float:
    """Returns the number of parameters in millions, as in the paper's tables."""
    return count_parameters(config)["with pooler"] / 1e6


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def measure(row: Row, seed: int, objectives: Sequence[str],
            tasks: Sequence[str]) -> dict[str, Any]:
    """Trains and measures a row, on the sentences of further objectives too, and returns
    its entry in the results."""
    objectives = list(dict.fromkeys([row.sentence_objective, *objectives]))
    folder = train(row, seed)
    scores = {"parameters": parameters(config_of(row, scale(row)))}
    for heldout in HELDOUT:
        for objective in objectives:
            accuracies = evaluate(
                folder, row._replace(sentence_objective=objective), heldout)
            if objective != row.sentence_objective:
                accuracies.pop("MLM")  # Measured on the row's own records alone.
            scores |= {f"{name}, {heldout}": value
                       for name, value in accuracies.items()}
    scores |= {task: finetune(folder, task, seed) for task in tasks}
    if len(tasks) > 1:
        scores["average"] = mean(scores[task] for task in tasks)
    curve, training = (runs.rows_of(folder, split) for split in ("eval", "train"))
    return {**named(row, seed), "steps": curve[-1]["step"], **runs.cost(folder),
            "finetuning_core_seconds": math.fsum(runs.cost(os.path.join(
                folder, task)).get("core_seconds", 0) for task in tasks),
            "scores": scores,
            "curve": {name: [each[name] for each in curve] for name in (
                "step", "masked_lm_loss", "masked_lm_accuracy")},
            "training": {name: [each[name] for each in training] for name in (
                "step", "masked_lm_loss")}}
