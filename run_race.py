r"""Fine-tunes ALBERT on RACE: reading comprehension with four choices.

    python run_race.py --data_dir=RACE --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/race --gradient_accumulation_steps=8 --do_predict

Trains on RACE's train, evaluates on dev at each checkpoint, keeps the best and, with
--do_predict, answers test; where test has answers its accuracy is reported too.

A question is four sequences: a batch of 32 is 128 of up to 512 pieces, which few
devices have the memory for. --gradient_accumulation_steps=8 computes it in parts of
four questions, and gives the same step.

With the model trained, --do_predict alone needs --output_dir and the data:

    python run_race.py --output_dir=runs/race --data_dir=RACE \
        --nodo_train --nodo_eval --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools
import hashlib
import json
import math
import os

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import features
from albert_tf.finetuning.race.head import MultipleChoice
from albert_tf.finetuning.task import FineTuningTask, fine_tune
from albert_tf.finetuning.race import task as race
from albert_tf.finetuning import tables
from albert_tf.finetuning.common import as_json, recipe_for, write_files
from albert_tf.records.spec import choice_spec

FLAGS = flags.FLAGS

finetuning_flags.define_flags(
    max_seq_length=512, do_train=True, do_eval=True, learning_rate=1e-5,
    save_checkpoints_steps=100)
# --help lists them too.
flags.adopt_module_key_flags(finetuning_flags)
FLAGS["recipe"].help += (
    " For a model without dropout these are those of version 2 of the released models: "
    "no dropout, rate 1e-5. (xxlarge of version 1 comes without, too, but the paper "
    "trains it with: add --albert_dropout_prob=0.1.)")
flags.DEFINE_string("task_name", "race", "As in the release: race.")
flags.DEFINE_string(
    "data_dir", "", "The folder RACE as downloaded, or the one that holds it.")
flags.DEFINE_integer("train_step", 12000, "Step at which training ends.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("warmup_step", 1000, "Steps of linear warm-up.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
finetuning_flags.define_export_flags()
finetuning_flags.define_prediction_flags()
flags.DEFINE_integer(
    "max_qa_length", 128, "Pieces that are kept of question and option, the last ones.",
    lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_bool("high_only", False, "Without the middle-school passages.")
flags.DEFINE_bool("middle_only", False, "Without the high-school passages.")
_FILE_OF_SPLIT = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}
for _split, _flag in _FILE_OF_SPLIT.items():
    flags.DEFINE_string(
        _flag, None, f"File in which the features of {_split} are kept; default: "
        f"{_split}.tf_record in --cached_dir.")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("task_name", "max_seq_length", "max_qa_length", "do_lower_case", "strip_accents",
         "dropout_prob")
_LEVELS = ("high_only", "middle_only")
_PREDICT_RESULTS = "predict_results.json"


class Race(FineTuningTask):
    """RACE, with what the flags say of it."""

    code = (race,)

    def __init__(self, task: race.RaceTask):
        self.task = task
        self.head = MultipleChoice(dropout_prob=FLAGS.dropout_prob)
        self._paths: dict[str, str] = {}

    def read(self, split):
        data = self.task.read(FLAGS.data_dir, split)
        logging.info("%s: %d questions on %d passages.", split, len(data.examples),
                     len({example.example_id for example in data.examples}))
        return data

    def spec(self):
        config = self.settings.config
        return choice_spec(
            race.NUM_CHOICES, config.vocab_size, config.type_vocab_size)

    def featurizer(self, split):
        return functools.partial(
            self.task.featurize, tokenizer=self.settings.tokenizer)

    def sources(self, split, data):
        # RACE comes as 28,000 files; one digest stands for all.
        digest = hashlib.sha256()
        for example in data.examples:
            digest.update(json.dumps([
                example.article, example.question, example.options,
                example.label]).encode())
        return {f"{split} data": digest.hexdigest()}

    def feature_settings(self, split):
        return {"max_qa_length": FLAGS.max_qa_length}

    def features_path(self, split):
        """Its folder is made."""
        flag = _FILE_OF_SPLIT[split]
        path = FLAGS[flag].value or super().features_path(split)
        if path in self._paths.values():
            raise InputError(f"--{flag}={path} is the file of another set already; "
                             "each set needs its own.")
        if FLAGS[flag].value:
            features.check_own(path, f"--{flag}")
        self._paths[split] = path
        files.make_directory(os.path.dirname(path) or ".",
                             f"--{flag}" if FLAGS[flag].value else "--cached_dir")
        return path

    def kept_options(self):
        return finetuning_flags.values(
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "max_qa_length", "dropout_prob", "num_length_buckets", *_LEVELS)

    def failure(self, data, outputs, table):
        return self.task.failure(data.examples, outputs)

    def chance_loss(self, data, table):
        return math.log(race.NUM_CHOICES)

    def score(self, data, outputs, table):
        return self.task.score(data.examples, outputs)

    def write(self, split, data, outputs, table, step):
        """Predictions and, of the test set, the accuracy where it is known."""
        examples, folder = data.examples, "eval_predictions" if split == "dev" else ""
        paths = self.task.write(
            os.path.join(self.settings.run.output_dir, folder), examples, outputs,
            "" if split == "dev" else FLAGS.prediction_file or "",
            FLAGS.all_probabilities)
        known = sum(example.label is not None for example in examples)
        if split == "test" and known:
            metrics = self.task.score(examples, outputs)
            logging.info(
                "Test, %d of %d questions with an answer: %s", known, len(examples),
                ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()))
            paths += write_files(self.settings.run.output_dir, {
                _PREDICT_RESULTS: as_json({"questions": known, **metrics})})
        elif split == "test":
            logging.info("The test set has no answers, so it is not scored.")
            # Of another set.
            files.remove(os.path.join(self.settings.run.output_dir, _PREDICT_RESULTS))
        logging.info("Wrote %s.", ", ".join(paths))

    def export(self, model, metrics):
        from albert_tf.serving import export
        from albert_tf.finetuning import text as text_tasks

        labels = list(race.LETTERS)
        export.export(
            model, self.head, FLAGS.export_dir, labels, FLAGS.dtype, text=finetuning_flags.of_text(
                text_tasks.Choices, self.settings.tokenizer, labels=labels,
                max_qa_length=FLAGS.max_qa_length))


def _use_recipe():
    # The released models of version 2 have no dropout in their config.
    config = finetuning_flags.model_config()
    dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
    name = "race" if dropout else "race-v2"
    finetuning_flags.use_recipe(
        name, recipe_for, num_train_steps="train_step", warmup_steps="warmup_step")


def main(argv):
    del argv
    # Of the levels both or neither: those that are given exclude others.
    given = any(FLAGS[name].present for name in _LEVELS)
    finetuning_flags.use_kept_task(_KEPT if given else _KEPT + _LEVELS)
    finetuning_flags.check_work()
    finetuning_flags.check_prediction_file(tables.format_of)
    if FLAGS.task_name.lower() != "race":
        raise InputError(
            f"--task_name={FLAGS.task_name}: this script knows race alone; "
            "run_classifier.py has the other tasks.")
    if not FLAGS.data_dir:
        raise InputError("--data_dir=FOLDER is needed: the folder RACE as downloaded.")
    if FLAGS.recipe and FLAGS.do_train:
        _use_recipe()
    task = race.RaceTask(FLAGS.max_seq_length, FLAGS.max_qa_length, FLAGS.high_only,
                         FLAGS.middle_only)
    fine_tune(Race(task), finetuning_flags.settings(
        FLAGS.train_step, FLAGS.warmup_step, _KEPT + _LEVELS, task="race",
        labels=list(race.LETTERS)))


if __name__ == "__main__":
    script.run(main)
