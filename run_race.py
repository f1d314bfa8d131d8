r"""Fine-tunes ALBERT on RACE: reading comprehension with four choices.

    python run_race.py --data_dir=RACE --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/race --gradient_accumulation_steps=8 --do_predict

Trains on RACE's train, evaluates on dev at each checkpoint, keeps the best and, with
--do_predict, answers test; where test has answers its accuracy is told too.

A question is four sequences: a batch of 32 is 128 of up to 512 pieces, which few
devices have the memory for. --gradient_accumulation_steps=8 computes it in parts of
four questions, and gives the same step.

With the model trained, --do_predict alone needs --output_dir and the data:

    python run_race.py --output_dir=runs/race --data_dir=RACE \
        --nodo_train --nodo_eval --do_predict
"""

import functools
import hashlib
import json
import os

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import finetuning_flags, flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.finetuning import features as feature_files
from albert_tf.finetuning.tasks import race
from albert_tf.finetuning.tasks.recipes import RECIPES

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
flags.DEFINE_integer("train_step", 12000, "Step at which training ends.", lower_bound=1)
flags.DEFINE_integer("warmup_step", 1000, "Steps of linear warm-up.", lower_bound=0)
flags.DEFINE_integer(
    "max_qa_length", 128, "Pieces that are kept of question and option, the last ones.",
    lower_bound=1)
flags.DEFINE_bool("high_only", False, "Without the middle-school passages.")
flags.DEFINE_bool("middle_only", False, "Without the high-school passages.")
_FILE_OF_SPLIT = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}
for _split, _flag in _FILE_OF_SPLIT.items():
    flags.DEFINE_string(
        _flag, None, f"File in which the features of {_split} are kept; default: "
        f"{_split}.tf_record in --cached_dir.")

# What makes up the task: kept with the model, and taken from there.
_KEPT = ("task_name", "max_seq_length", "max_qa_length", "do_lower_case",
         "dropout_prob")
_LEVELS = ("high_only", "middle_only")
_OUTPUT_OF_SPLIT = {"dev": "eval_predictions", "test": ""}
_PREDICT_RESULTS = "predict_results.json"


def _use_kept_task():
    # Of the levels both or neither: those that are given exclude others.
    given = any(FLAGS[name].present for name in _LEVELS)
    finetuning_flags.use_kept_task(_KEPT if given else _KEPT + _LEVELS)
    if FLAGS.task_name.lower() != "race":
        raise InputError(
            f"--task_name={FLAGS.task_name}: this script knows race alone; "
            "run_classifier.py has the other tasks.")


def _use_recipe():
    # The released models of version 2 have no dropout in their config. The length
    # that the config is checked against is a recipe's already, or the flag's.
    config = finetuning_flags.model_config()
    dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
    name = "race" if dropout else "race-v2"
    logging.info("The settings are those of the recipe %s.", name)
    finetuning_flags.use_recipe(
        RECIPES[name], albert_dropout="albert_dropout_prob",
        classifier_dropout="dropout_prob", batch_size="train_batch_size",
        learning_rate="learning_rate", num_train_steps="train_step",
        warmup_steps="warmup_step", max_seq_length="max_seq_length")


def _splits() -> list[str]:
    """The sets that are needed, in the order of their use."""
    splits = [split for split, needed in (
        ("train", FLAGS.do_train), ("dev", FLAGS.do_eval), ("test", FLAGS.do_predict))
        if needed]
    if not splits:
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict.")
    if not FLAGS.data_dir:
        raise InputError("--data_dir=FOLDER is needed: the folder RACE as downloaded.")
    return splits


def _read(task: race.RaceTask, split: str) -> list[race.RaceExample]:
    examples = task.read(FLAGS.data_dir, split).examples
    logging.info("%s: %d questions on %d passages.", split, len(examples),
                 len({example.example_id for example in examples}))
    return examples


def _features_paths(splits) -> dict[str, str]:
    """Where the features of each set are kept; their folders are made."""
    paths = {}
    for split in splits:
        flag = _FILE_OF_SPLIT[split]
        path = FLAGS[flag].value or finetuning_flags.features_path(split)
        if path in paths.values():
            raise InputError(f"--{flag}={path} is the file of another set already; "
                             "each set needs its own.")
        # A file that is named may be anything, and must not be written over.
        if FLAGS[flag].value and files.exists(path) and not files.exists(
                f"{path}.fingerprint.json"):
            raise InputError(
                f"--{flag}={path} was not written by this script, which keeps features "
                "there and makes them of --data_dir: give another name, or none.")
        paths[split] = path
        files.make_directory(os.path.dirname(path) or ".",
                             f"--{flag}" if FLAGS[flag].value else "--cached_dir")
    return paths


def _digest(examples) -> str:
    """Of all that the features depend on."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([
            example.article, example.question, example.options,
            example.label]).encode())
    return digest.hexdigest()


def _features(task, split, path, examples, config, tokenizer):
    """A FeatureTable, made or taken from a file that fits."""
    from albert_tf.records.spec import choice_spec

    function = functools.partial(
        task.featurize, tokenizer=tokenizer)

    def create():
        for features in feature_files.featurize_all(
                examples, function, what=split, num_workers=FLAGS.num_workers):
            yield from features

    parts = finetuning_flags.features_fingerprint(
        {}, [race], max_qa_length=FLAGS.max_qa_length)
    # RACE comes as 28,000 files; one digest tells of all.
    parts["files"][f"{split} data"] = _digest(examples)
    return feature_files.load_or_create(
        path, choice_spec(
            race.NUM_CHOICES, config.vocab_size, config.type_vocab_size),
        parts, create)


def _build(task, config, options, sets, tables):
    """The FineTuning object; in the strategy's scope."""
    import tf_keras

    from albert_tf.finetuning import run
    from albert_tf.modeling import models
    from albert_tf.training import objectives

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    model = models.AlbertForMultipleChoice(config, FLAGS.dropout_prob)

    def score(predictions):
        return task.score(sets["dev"], predictions)

    optimizer = run.make_optimizer(
        model, FLAGS.learning_rate, FLAGS.train_step, FLAGS.warmup_step,
        FLAGS.optimizer) if FLAGS.do_train else None
    return run.FineTuning(
        run.make_task(model, objectives.CHOICE, score, task.main_metric),
        config, options,
        run.BatchOptions(FLAGS.max_seq_length, FLAGS.num_length_buckets,
                                FLAGS.random_seed, FLAGS.predict_batch_size),
        tables.get("train"), tables.get("dev"), optimizer,
        {name: FLAGS[name].value for name in (
            "task_name", "learning_rate", "warmup_step", "optimizer", "max_seq_length",
            "max_qa_length", "dropout_prob", "num_length_buckets", *_LEVELS)})


def _write(tuner, task, split, examples, predictions):
    """Files of predictions and, of the test set, the accuracy where it is known."""
    if not tuner.chief:
        return
    paths = task.write(os.path.join(FLAGS.output_dir, _OUTPUT_OF_SPLIT[split]),
                       examples, predictions)
    if split == "test":
        results = os.path.join(FLAGS.output_dir, _PREDICT_RESULTS)
        known = sum(example.label is not None for example in examples)
        if known:
            metrics = task.score(examples, predictions)
            logging.info(
                "Test, %d of %d questions with an answer: %s", known,
                len(examples), ", ".join(
                    f"{name} {value:.6g}" for name, value in metrics.items()))
            with files.atomic_write(results) as stream:
                stream.write(json.dumps(
                    {"questions": known, **metrics}, indent=2).encode() + b"\n")
            paths.append(results)
        else:
            logging.info("The test set has no answers, so it is not scored.")
            files.remove(results)  # Of another set.
    logging.info("Wrote %s.", ", ".join(paths))


def main(argv):
    del argv
    _use_kept_task()
    splits = _splits()
    if FLAGS.recipe and FLAGS.do_train:
        _use_recipe()
    options = cli_flags.run_options(
        num_train_steps=FLAGS.train_step, from_scratch=FLAGS.from_scratch,
        early_stopping=FLAGS.early_stopping)
    config = finetuning_flags.model_config()
    task = race.RaceTask(FLAGS.max_seq_length, FLAGS.max_qa_length, FLAGS.high_only,
                         FLAGS.middle_only)
    tokenizer = finetuning_flags.tokenizer(config)
    finetuning_flags.check_start()
    sets = {split: _read(task, split) for split in splits}
    files.make_directory(options.output_dir, "--output_dir")
    paths = _features_paths(splits)
    finetuning_flags.keep_task(_KEPT + _LEVELS, task="race", labels=list(race.LETTERS))
    # Before the features, which start TensorFlow.
    strategy = cli_flags.make_strategy()

    tables = {split: _features(
        task, split, paths[split], sets[split], config, tokenizer)
              for split in splits}

    with strategy.scope():
        tuner = _build(task, config, options, sets, tables)
        if FLAGS.do_train:
            tuner.train()
        if FLAGS.do_eval:
            _, predictions = tuner.evaluate()
            _write(tuner, task, "dev", sets["dev"], predictions)
        if FLAGS.do_predict:
            predictions = tuner.predict(tables["test"], "prediction")
            _write(tuner, task, "test", sets["test"], predictions)


if __name__ == "__main__":
    cli_flags.run(main)
