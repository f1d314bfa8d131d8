r"""Pretrains ALBERT on TFRecords of create_pretraining_data.py.

    python run_pretraining.py \
        --input_file='data/train.tfrecord-*' --eval_input_file=data/dev.tfrecord \
        --output_dir=runs/base --model=base \
        --max_seq_length=512 --max_predictions_per_seq=77 \
        --train_batch_size=4096 --gradient_accumulation_steps=512

On a Cloud TPU add --tpu=NAME, on GPUs --distribution_strategy=mirrored. The same
command started again goes on at its last checkpoint.
"""

import sys

from absl import flags, logging

from albert_tf import command_line, files, record_vocabulary, task_folder
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

command_line.define_model_flags()
command_line.define_device_flags()
command_line.define_training_flags(
    train_batch_size=4096, eval_batch_size=64, optimizer="lamb",
    learning_rate=0.00176, save_checkpoints_steps=5000)
# --help lists them too.
flags.adopt_module_key_flags(command_line)
flags.DEFINE_string("input_file", None,
                    "TFRecords to train on: comma-separated paths or globs.")
flags.DEFINE_string(
    "eval_input_file", None,
    "TFRecords of held-out documents to evaluate on; giving them turns on "
    "evaluation at each checkpoint. Without them --do_eval evaluates on "
    "--input_file, as the release did.")
flags.DEFINE_integer("max_seq_length", 512, "Length of the records' sequences.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per record.")
flags.DEFINE_bool("do_train", True, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate: at each checkpoint, or, "
                  "without --do_train, the latest checkpoint alone.")
flags.DEFINE_float("poly_power", 1.0, "Power of the polynomial decay of the rate.")
flags.DEFINE_integer("num_train_steps", 125000, "Step at which training ends.")
flags.DEFINE_integer("num_warmup_steps", 3125, "Steps of linear warm-up.")
flags.DEFINE_integer("start_warmup_step", 0,
                     "Step at which warm-up starts; the rate before it is 0.")
flags.DEFINE_integer("max_eval_steps", 100,
                     "Batches of an evaluation at the most; 0 evaluates all.",
                     lower_bound=0)
flags.DEFINE_bool("init_from_group0", False,
                  "Copy group 0 of --init_checkpoint into every group.")
flags.DEFINE_integer("masked_lm_budget", 0,
                     "As in the release, whose masking while training was never "
                     "published; only 0 is possible.")


def _input_files(config):
    """The features of the records, checked files to train and evaluate on, and the
    vocabulary they were made with, where it is known."""
    from albert_tf import records

    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {FLAGS.max_seq_length} is over the config's "
            f"max_position_embeddings {config.max_position_embeddings}.")
    spec = records.pretraining_spec(
        FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, config.vocab_size,
        config.type_vocab_size)
    flags_used = ["eval_input_file"] if FLAGS.eval_input_file else []
    if FLAGS.do_train or not FLAGS.eval_input_file:
        flags_used.append("input_file")
    # All names before any content, which takes longer to check.
    paths = {name: files.expand_patterns(FLAGS[name].value or "", f"--{name}")
             for name in flags_used}
    vocabulary = record_vocabulary.check_vocabulary(
        [path for found in paths.values() for path in found], config.vocab_size)
    if vocabulary:
        task_folder.check_records(FLAGS.output_dir, vocabulary)
    infos = {name: records.check_files(found, spec) for name, found in paths.items()}
    train, evaluation = infos.get("input_file"), infos.get("eval_input_file")
    if FLAGS.do_eval and evaluation is None:
        logging.warning(
            "Evaluating on the files of --input_file, as the release did: the "
            "numbers say nothing of unseen text. Give --eval_input_file.")
        evaluation = train
    for what, found in (("Training", train), ("Evaluation", evaluation)):
        if found:
            logging.info("%s: %d records in %d files.", what,
                         sum(info.num_records for info in found), len(found))
    return spec, train, evaluation, vocabulary


def _inputs(spec, train, evaluation):
    """training.Inputs over checked files."""
    from albert_tf import input_pipeline, records, training

    def train_dataset(shape, **pipeline):
        del shape  # There is one.
        return input_pipeline.training_dataset(
            train, spec, seed=FLAGS.random_seed, **pipeline)

    def evaluation_dataset(shape, batch_size, replicas, shard_index, num_shards):
        del shape
        data = input_pipeline.evaluation_dataset(
            evaluation, spec, batch_size, shard_index=shard_index,
            num_shards=num_shards, batches_multiple_of=replicas,
            max_batches=FLAGS.max_eval_steps * replicas or None)
        left_out = sum(info.num_records for info in evaluation) - data.num_examples
        if left_out:
            logging.info("--max_eval_steps leaves %d of %d records out of each "
                         "evaluation.", left_out, left_out + data.num_examples)
        return data.dataset, data.num_batches

    paths = [info.path for info in (train or []) + (evaluation or [])]
    return training.Inputs(
        train=train_dataset,
        evaluation=evaluation_dataset if evaluation else None,
        explain_error=lambda error: records.explain_read_error(paths, spec, error))


def _task_options(train, evaluation):
    """What the result depends on beside training.RunOptions, for options.json."""
    names = ("optimizer", "learning_rate", "poly_power", "num_warmup_steps",
             "start_warmup_step", "max_seq_length", "max_predictions_per_seq",
             "max_eval_steps")
    return {
        **{name: FLAGS[name].value for name in names},
        "input_files": {info.path: info.num_records for info in train or []},
        "eval_input_files": {info.path: info.num_records for info in evaluation or []}}


def _build(config, options):
    """The task and, to train it, its optimizer; in the strategy's scope."""
    import tf_keras

    from albert_tf import heads, losses, optimization, training_steps

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    model = heads.AlbertForPreTraining(config)
    task = training_steps.Task(
        model=model,
        denominators=losses.pretraining_denominators,
        losses=losses.pretraining_losses,
        metrics=losses.pretraining_metrics,
        best_metric="masked_lm_accuracy")
    if not FLAGS.do_train:
        return task, None
    optimizer = optimization.create_optimizer(
        FLAGS.learning_rate, options.num_train_steps, FLAGS.num_warmup_steps,
        optimizer=FLAGS.optimizer, poly_power=FLAGS.poly_power,
        start_warmup_step=FLAGS.start_warmup_step)
    optimizer.build(model.trainable_variables)
    return task, optimizer


def main(argv):
    del argv
    config = command_line.model_config()
    options = command_line.run_options(
        num_train_steps=FLAGS.num_train_steps,
        init_from_group0=FLAGS.init_from_group0)
    if FLAGS.masked_lm_budget:
        raise InputError(
            "--masked_lm_budget: the release never published its masking while "
            "training; mask the records with create_pretraining_data.py.")
    if not (FLAGS.do_train or FLAGS.do_eval):
        raise InputError("nothing to do: give --do_train or --do_eval.")
    spec, train, evaluation, vocabulary = _input_files(config)
    files.make_directory(options.output_dir, "--output_dir")

    strategy = command_line.make_strategy()
    from albert_tf import optimization, training

    with strategy.scope():
        task, optimizer = _build(config, options)
        run = training.Run(task, config, options, _inputs(spec, train, evaluation),
                           optimizer, _task_options(train, evaluation))
        if not FLAGS.do_train:
            run.evaluate()
            return
        if vocabulary and run.chief:
            task_folder.keep_vocabulary(options.output_dir, vocabulary)
        optimization.log_parameter_groups(task.model.trainable_variables, optimizer)
        try:
            run.train()
        except training.Stopped as stop:
            sys.exit(128 + stop.signal_number)


if __name__ == "__main__":
    command_line.run(main)
