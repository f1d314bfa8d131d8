r"""Pretrains ALBERT on TFRecords of create_pretraining_data.py.

    python run_pretraining.py \
        --input_file='data/train.tfrecord-*' --eval_input_file=data/dev.tfrecord \
        --output_dir=runs/base --model=base \
        --max_seq_length=512 --max_predictions_per_seq=77 \
        --train_batch_size=4096 --gradient_accumulation_steps=512

On a Cloud TPU add --tpu=NAME, on GPUs --distribution_strategy=mirrored. The same
command started again resumes from its last checkpoint. Records made with
--masked_lm_prob=0 are masked anew in each epoch with --dynamic_masking.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import contextlib
from typing import Any, NamedTuple, Optional, Sequence

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.checkpoints.files import files_of_run
from albert_tf.cli import flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.training.depth import depth_of
from albert_tf.training.memory import Sequences

FLAGS = flags.FLAGS

cli_flags.define_model_flags()
cli_flags.define_device_flags()
cli_flags.define_training_flags(
    train_batch_size=4096, eval_batch_size=64, optimizer="lamb",
    learning_rate=0.00176, save_checkpoints_steps=5000)
# --help lists them too.
flags.adopt_module_key_flags(cli_flags)
flags.DEFINE_string("input_file", None,
                    "TFRecords to train on: comma-separated paths or globs.")
flags.DEFINE_string(
    "eval_input_file", None,
    "TFRecords of held-out documents to evaluate on; giving them turns on "
    "evaluation at each checkpoint. Without them --do_eval evaluates on "
    "--input_file, as the release did.")
flags.DEFINE_integer("max_seq_length", 512, "Length of the records' sequences.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per record.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_bool("do_train", True, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate: at each checkpoint, or, "
                  "without --do_train, the latest checkpoint alone.")
flags.DEFINE(cli_flags.Number(), "poly_power", 1.0,
             "Power of the polynomial decay of the rate.")
flags.DEFINE(cli_flags.Number(lower_bound=1e-6, upper_bound=1), "decay_share", 1.0,
             "Share of the steps, at the end, in which the rate decays; below 1 it stays "
             "at --learning_rate from warm-up to there.")
flags.DEFINE_integer("num_train_steps", 125000, "Step at which training ends.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("num_warmup_steps", 3125, "Steps of linear warm-up.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("start_warmup_step", 0,
                     "Step at which warm-up starts; the rate before it is 0.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
flags.DEFINE_string(
    "depth_schedule", "",
    "Passes through the shared layer, each with its share of the steps: 3:0.5,6:0.25,"
    "12:0.25 trains half of them at 3 passes and ends at 12. Evaluation takes all.")
flags.DEFINE_string(
    "random_depth", "",
    "LEAST-MOST, such as 4-12: each step draws its number of passes, so that one model "
    "serves at many depths.")
flags.DEFINE_integer("max_eval_steps", 100,
                     "Most batches of an evaluation; 0 evaluates all.",
                     lower_bound=0, upper_bound=cli_flags.MOST)
flags.DEFINE_bool("init_from_group0", False,
                  "Copy group 0 of --init_checkpoint into every group.")
flags.DEFINE_integer("masked_lm_budget", 0,
                     "As in the release, whose masking while training was never "
                     "published; only 0 is possible. See --dynamic_masking.")
flags.DEFINE_enum(
    "sentence_objective", None, ["order", "next", "none"],
    "What is learnt of sentences beside masked pieces: order (ALBERT's), next "
    "(BERT's), none leaves that loss out. Default: what the records were made for, "
    "as the summary beside them says, else order.")
flags.DEFINE_bool(
    "dynamic_masking", False,
    "Draw masks anew in each epoch, while training; for records made with "
    "--masked_lm_prob=0. Evaluation masks the same pieces each time.")
flags.DEFINE(cli_flags.Number(upper_bound=1), "masked_lm_prob", 0.15,
             "Share of a sequence's pieces to mask; with --dynamic_masking.")
flags.DEFINE_integer("ngram", 3, "Words in the longest n-gram masked together; with "
                     "--dynamic_masking.")
flags.DEFINE_bool("favor_shorter_ngram", True,
                  "Draw n-gram sizes in proportion to 1/n; if false, the other way "
                  "round; with --dynamic_masking.")
flags.DEFINE_bool("do_whole_word_mask", True,
                  "Mask words whole; if false, each piece counts as a word; with "
                  "--dynamic_masking.")
for _name, _piece in (("cls", "[CLS]"), ("sep", "[SEP]"), ("mask", "[MASK]")):
    flags.DEFINE_integer(
        f"{_name}_id", None, f"Id of {_piece}; with --dynamic_masking. Default: what "
        "the summary beside the records says.",
        lower_bound=0, upper_bound=cli_flags.MOST)

_MASKING_FLAGS = ("masked_lm_prob", "ngram", "favor_shorter_ngram",
                  "do_whole_word_mask")
_ID_FLAGS = ("cls_id", "sep_id", "mask_id")


class _Data(NamedTuple):
    """What there is to train and evaluate on."""

    spec: Any  # what is read of the records
    train: Optional[Sequence[Any]]  # checked files
    evaluation: Optional[Sequence[Any]]  # checked files
    vocabulary: Optional[dict[str, Any]]  # of the records, where it is known
    sentence_objective: str  # "order", "next" or "none"
    special_ids: Any  # where masks are made while training


def _masking_options() -> Optional[MaskingOptions]:
    """How masks are made while training, or None if they are not."""
    if not FLAGS.dynamic_masking:
        given = [name for name in (*_MASKING_FLAGS, *_ID_FLAGS) if FLAGS[name].present]
        if given:
            raise InputError(
                f"--{given[0]} says how masks are made while training; give "
                "--dynamic_masking too, or leave it out.")
        return None
    if FLAGS.masked_lm_prob == 0:
        raise InputError(
            "--masked_lm_prob=0 masks nothing; give --dynamic_masking a share above 0.")
    options = MaskingOptions(
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        **{name: FLAGS[name].value for name in _MASKING_FLAGS})
    logging.info(
        "Masks are drawn anew each time: %d pieces of a sequence of %d, at most "
        "--max_predictions_per_seq=%d.",
        options.num_to_predict(FLAGS.max_seq_length), FLAGS.max_seq_length,
        FLAGS.max_predictions_per_seq)
    return options


def _data(config) -> _Data:
    """Checks all files."""
    from albert_tf.records import checks
    from albert_tf.records.spec import pretraining_spec

    if FLAGS.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {FLAGS.max_seq_length} is over the config's "
            f"max_position_embeddings {config.max_position_embeddings}.")
    spec = pretraining_spec(
        FLAGS.max_seq_length, FLAGS.max_predictions_per_seq, config.vocab_size,
        config.type_vocab_size)
    if FLAGS.dynamic_masking:
        spec = checks.unmasked_spec(spec)
    flags_used = ["eval_input_file"] if FLAGS.eval_input_file else []
    if FLAGS.do_train or not FLAGS.eval_input_file:
        flags_used.append("input_file")
    # All names before any content, which takes longer to check.
    paths = {name: files.expand_patterns(FLAGS[name].value or "", f"--{name}")
             for name in flags_used}
    all_paths = [path for found in paths.values() for path in found]
    files.prepare_outputs({"--output_dir": files_of_run(FLAGS.output_dir)},
                          {f"--{name}": found for name, found in paths.items()})
    summaries = checks.summaries_of(all_paths)
    vocabulary = checks.check_vocabulary(summaries, config.vocab_size)
    if vocabulary:
        model_vocabulary.check_records(FLAGS.output_dir, vocabulary)
    objective = checks.sentence_objective(summaries, FLAGS.sentence_objective)
    checks.check_masks(all_paths, spec, FLAGS.dynamic_masking)
    special_ids = SpecialIds(**checks.special_ids(
        all_paths, spec, config.vocab_size, (vocabulary or {}).get("special_ids"),
        {name: FLAGS[name].value for name in _ID_FLAGS}
    )) if FLAGS.dynamic_masking else None
    infos = {name: checks.check_files(found, spec) for name, found in paths.items()}
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
    return _Data(spec, train, evaluation, vocabulary, objective, special_ids)


def _batches(data: _Data, options, masking: Optional[MaskingOptions], config,
             streams: Optional[int]):
    """Batches of checked files, masked while training where `masking` says so."""
    from albert_tf.masking import in_training
    from albert_tf.training import input_pipeline

    return input_pipeline.RecordBatches(
        data.spec, data.train, data.evaluation,
        train_batch_size=options.train_batch_size,
        eval_batch_size=options.eval_batch_size, seed=FLAGS.random_seed,
        max_eval_steps=FLAGS.max_eval_steps, streams=streams or 1,
        random_map=masking and in_training.DynamicMasking(
            masking, data.special_ids, FLAGS.max_seq_length, config.vocab_size))


def _task_options(data: _Data, streams: Optional[int]) -> dict[str, Any]:
    """What the result depends on beside training.RunOptions, for options.json."""
    names = ("optimizer", "learning_rate", "poly_power", "num_warmup_steps",
             "start_warmup_step", "max_seq_length", "max_predictions_per_seq",
             "max_eval_steps")
    options = {
        **{name: FLAGS[name].value for name in names},
        "input_files": {info.path: info.num_records for info in data.train or []},
        "eval_input_files": {
            info.path: info.num_records for info in data.evaluation or []}}
    # Only what differs from a run of the release: folders of earlier versions have
    # no such entries.
    if streams:
        options["streams"] = streams
    for name in ("depth_schedule", "random_depth", "decay_share"):
        if FLAGS[name].value != FLAGS[name].default:
            options[name] = FLAGS[name].value
    if data.sentence_objective != "order":
        options["sentence_objective"] = data.sentence_objective
    if FLAGS.dynamic_masking:
        options |= {"dynamic_masking": True,
                    "special_ids": data.special_ids._asdict(),
                    **{name: FLAGS[name].value for name in _MASKING_FLAGS}}
    return options


def _build(config, options, sentence_objective: str):
    """The task and, to train it, its optimizer; in the strategy's scope."""
    import tf_keras

    from albert_tf.modeling import models
    from albert_tf.training import objectives, optimization

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    model = models.AlbertForPreTraining(config)
    objective = objectives.PRETRAINING
    if sentence_objective == "none":
        model.freeze_sentence_layers()
        objective = objectives.MASKED_LM_ALONE
    task = objectives.Task(model, objective, best_metric="masked_lm_accuracy")
    if not FLAGS.do_train:
        return task, None
    optimizer = optimization.create_optimizer(
        FLAGS.learning_rate, options.num_train_steps, FLAGS.num_warmup_steps,
        optimizer=FLAGS.optimizer, poly_power=FLAGS.poly_power,
        start_warmup_step=FLAGS.start_warmup_step, decay_share=FLAGS.decay_share)
    optimizer.build(model.trainable_variables)
    return task, optimizer


def _check_objective(output_dir: str, options: dict[str, Any]) -> None:
    """Refuses to continue with layers that the run so far left out."""
    from albert_tf.checkpoints.files import holds_checkpoint
    from albert_tf.training import run_folder

    if not holds_checkpoint(output_dir):
        return
    old, new = run_folder.changed_options(output_dir, options).get(
        "sentence_objective", (None, None))
    if old == "none":
        raise InputError(
            f"the run in {output_dir} started with --sentence_objective=none, now it "
            f"is {new or 'order'}; choose another --output_dir, with that run's "
            "checkpoint as --init_checkpoint to start from its weights.")


def main(argv):
    del argv
    config = cli_flags.model_config(
        list(filter(files.exists, cli_flags.kept_configs())))
    options = cli_flags.run_options()
    cli_flags.check_init_checkpoint()
    sequences = Sequences(
        FLAGS.max_seq_length, predictions=FLAGS.max_predictions_per_seq)
    cli_flags.check_memory(config, options, **{
        name: sequences for name, used in (
            ("train_batch_size", FLAGS.do_train),
            ("eval_batch_size", FLAGS.do_eval or FLAGS.eval_input_file)) if used})
    if FLAGS.masked_lm_budget:
        raise InputError(
            "--masked_lm_budget: the release never published its masking while "
            "training; --dynamic_masking is this project's.")
    if not (FLAGS.do_train or FLAGS.do_eval):
        raise InputError("nothing to do: give --do_train or --do_eval.")
    depth = depth_of(config, options.num_train_steps, FLAGS.random_seed,
                     FLAGS.depth_schedule, FLAGS.random_depth)
    masking = _masking_options()
    data = _data(config)
    files.make_directory(options.output_dir, "--output_dir")

    strategy = cli_flags.make_strategy()
    from albert_tf.training import distribution, loop, optimization, run_folder

    streams = run_folder.streams(
        options.output_dir, sum(info.num_records for info in data.train),
        options.train_batch_size,
        distribution.num_processes(strategy)) if FLAGS.do_train else None
    task_options = _task_options(data, streams)
    with contextlib.ExitStack() as stack:
        if FLAGS.do_train:
            stack.enter_context(run_folder.held(options.output_dir, strategy))
            _check_objective(options.output_dir, task_options)
        stack.enter_context(strategy.scope())
        task, optimizer = _build(config, options, data.sentence_objective)
        run = loop.Run(
            task, config, options, _batches(data, options, masking, config, streams),
            optimizer, task_options, depth)
        if not FLAGS.do_train:
            run.evaluate()
            return
        optimization.log_parameter_groups(task.model.trainable_variables, optimizer)

        def keep_vocabulary():
            if data.vocabulary:
                model_vocabulary.keep(options.output_dir, data.vocabulary)

        run.train(keep_vocabulary)


if __name__ == "__main__":
    script.run(main)
