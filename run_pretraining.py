r"""Pretrains ALBERT on TFRecords written by create_pretraining_data.py.

    python run_pretraining.py \
        --input_file='data/train.tfrecord-*' --eval_input_file=data/heldout.tfrecord \
        --output_dir=runs/base --model=base \
        --max_seq_length=512 --max_predictions_per_seq=77 \
        --train_batch_size=4096 --gradient_accumulation_steps=128 --dtype=bfloat16

This is for one GPU, which computes each batch in 128 parts of 32 sequences. On eight GPUs
add --distribution_strategy=mirrored, on a TPU with eight cores --tpu=NAME, and give
--gradient_accumulation_steps=16 (docs/PRETRAINING.md). If a run was interrupted, the same
command resumes from its last checkpoint. Records written with --masked_lm_prob=0 get new
masks in each epoch with --dynamic_masking, or orders with --objective=permutation.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import contextlib
import dataclasses
import os
from typing import Any, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.checkpoints.folders import claim_run_folder, folder_of, holds_checkpoint
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import check_needs, define, use_recipe
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.modeling.parameter_count import QUERY_VECTOR
from albert_tf.options import given, option
from albert_tf.training import devices
from albert_tf.training.data import PretrainingData, drawn_by
from albert_tf.training.options import OPTIMIZERS, Sequences
from albert_tf.training.schedules import PRETRAINING_RECIPES, depth_of

FLAGS = flags.FLAGS

_TRAINED = dict(needs="do_train")
_DRAWN = "With --dynamic_masking or --objective=permutation: "
_FROM_SUMMARY = "Default: that of the summary file beside the records."
_MADE_WITH = ("that the records were made with, to copy it into --output_dir; needed only "
              "if it is no longer where it was.")


def _drawn(default: Any, help: str, **bounds: Any) -> Any:
    return option(default, _DRAWN + help, **bounds,
                  only_with="dynamic_masking objective=permutation")


@dataclasses.dataclass(frozen=True)
class PretrainingOptions:
    """The options besides those of any run."""

    recipe: Optional[str] = option(
        None, "Named preset; create the records with the same preset. release: the "
        "defaults. roberta: no sentence loss, new masks in each epoch, batches of 8192, "
        "500,000 steps. fast: 40 % of the tokens masked, batches of 2048, depth growing "
        "from a quarter of the layers to all; on small models it reached the loss of "
        "release with 31 % of the computation (docs/SCHEDULES.md). Explicit flags "
        "override the preset.", choices=list(PRETRAINING_RECIPES))
    input_file: Optional[str] = option(
        None, "TFRecords to train on: paths or patterns, separated by commas.")
    eval_input_file: Optional[str] = option(
        None, "TFRecords of held-out documents. With them the model is evaluated at each "
        "checkpoint. Without them --do_eval evaluates on --input_file, as the original "
        "implementation does.")
    max_seq_length: int = option(512, "Length of the records, in tokens.", least=1)
    max_predictions_per_seq: int = option(
        20, "Maximum number of masked tokens per record.", least=1)
    do_train: bool = option(True, "Whether to train.")
    do_eval: bool = option(
        False, "Whether to evaluate: at each checkpoint of training, or only the latest "
        "checkpoint without --do_train.")
    optimizer: str = option(
        "lamb", "Optimizer; without bias correction, as in the original implementation.",
        choices=OPTIMIZERS, **_TRAINED)
    learning_rate: float = option(
        0.00176, "Peak learning rate, reached at the end of warm-up.", **_TRAINED)
    poly_power: float = option(
        1.0, "Power of the polynomial decay of the learning rate.", **_TRAINED)
    decay_share: float = option(
        1.0, "Share of the steps, at the end of training, in which the learning rate "
        "decays. Before them it stays at --learning_rate.", least=1e-6, most=1,
        **_TRAINED)
    num_train_steps: int = option(
        125000, "Number of training steps.", least=1, **_TRAINED)
    num_warmup_steps: int = option(
        3125, "Number of steps of linear warm-up.", **_TRAINED)
    start_warmup_step: int = option(
        0, "Step at which warm-up starts; the learning rate is 0 before it.", **_TRAINED)
    depth_schedule: str = option(
        "", "Numbers of layers, which must share their parameters, each with its share of "
        "the steps: 3:0.5,6:0.25,12:0.25 trains 3 layers in the first half of the steps "
        "and 12 at the end. Evaluation always uses all layers.", **_TRAINED)
    max_eval_steps: int = option(
        100, "Maximum number of evaluation batches; 0 uses all.",
        needs="do_eval eval_input_file")
    masked_lm_budget: int = option(
        0, "Only 0 is possible: the code behind this flag of the original "
        "implementation was never published. See --dynamic_masking.", most=0)
    sentence_objective: Optional[str] = option(
        None, "Sentence loss besides that of masked tokens: order (ALBERT), next (BERT) "
        "or none. Default: that of the summary file beside the records, or order if "
        "there is none.", choices=["order", "next", "none"])
    objective: str = option(
        "masked", "How words are predicted. masked: from the tokens around their masks "
        "(ALBERT). permutation: each from those before it in a random order of the "
        "sequence, in which nothing is masked (XLNet); for records written with "
        "--masked_lm_prob=0. The orders are new in each epoch, and the same in each "
        "evaluation.", choices=["masked", "permutation"])
    dynamic_masking: bool = option(
        False, "Draw new masks in each epoch, during training; for records written with "
        "--masked_lm_prob=0. Each evaluation masks the same tokens; records of "
        "--eval_input_file that are already masked keep their masks.",
        needs="objective=masked")
    masked_lm_prob: float = _drawn(
        0.15, "share of the tokens to mask, or share at the end of the order to predict, "
        "by default a sixth.", most=1)
    ngram: int = _drawn(3, "maximum number of words in an n-gram that is masked, or that "
                        "stays together in the order.", least=1)
    favor_shorter_ngram: bool = _drawn(
        True, "draw n-gram lengths with probability proportional to 1/n; if false, "
        "longer ones are more likely.")
    do_whole_word_mask: bool = _drawn(
        True, "mask or predict whole words; if false, each token counts as a word.")
    cls_id: Optional[int] = _drawn(None, f"id of [CLS]. {_FROM_SUMMARY}")
    sep_id: Optional[int] = _drawn(None, f"id of [SEP]. {_FROM_SUMMARY}")
    mask_id: Optional[int] = _drawn(None, f"id of [MASK]. {_FROM_SUMMARY}")
    spm_model_file: Optional[str] = option(None, f"SentencePiece model {_MADE_WITH}")
    vocab_file: Optional[str] = option(None, f"WordPiece vocabulary {_MADE_WITH}")


define(*cli_flags.OF_RUN, cli_flags.OldOptions, PretrainingOptions,
       without="from_scratch early_stopping", train_batch_size=4096)


def _check_memory(config, options) -> None:
    most = FLAGS.max_predictions_per_seq
    # With two streams each prediction has a row of its own in the layers.
    sequences = Sequences(
        FLAGS.max_seq_length + most * (FLAGS.objective == "permutation"),
        predictions=most)
    batches = [*["train_batch_size"] * FLAGS.do_train, *["eval_batch_size"] * bool(
        FLAGS.do_eval or FLAGS.eval_input_file)]
    cli_flags.check_memory(
        FLAGS, config, options.step, **dict.fromkeys(batches, sequences))


def _masking_options() -> Optional[MaskingOptions]:
    """Returns the options of masks or orders that are drawn during training; None if
    the records hold masks."""
    drawn = drawn_by(FLAGS)
    if not drawn:
        return None
    if FLAGS.objective == "permutation" and not FLAGS["masked_lm_prob"].present:
        FLAGS["masked_lm_prob"].value = 1 / 6  # XLNet, section 2.3: K is 6
    options = given(MaskingOptions, FLAGS)
    if not options.masked_lm_prob:
        raise InputError(
            f"--masked_lm_prob=0 predicts nothing; with {drawn} it must be greater than "
            "0.")
    return options


def _task_options(data: PretrainingData, streams: Optional[int]) -> dict[str, Any]:
    """Returns what the result depends on besides training.RunOptions, for
    options.json."""
    names = ["optimizer", "learning_rate", "poly_power", "num_warmup_steps",
             "start_warmup_step", "max_seq_length", "max_predictions_per_seq",
             "max_eval_steps"]
    more = {}
    # Write only what differs from the original implementation.
    if streams:
        more["streams"] = streams
    if data.sentence_objective != "order":
        more["sentence_objective"] = data.sentence_objective
    names += [name for name in ("depth_schedule", "decay_share", "objective")
              if FLAGS[name].value != FLAGS[name].default]
    if FLAGS.dynamic_masking and FLAGS.objective == "masked":
        more["dynamic_masking"] = True
    if data.special_ids:
        more["special_ids"] = data.special_ids._asdict()
        names += ["masked_lm_prob", "ngram", "favor_shorter_ngram", "do_whole_word_mask"]
    return {**{name: FLAGS[name].value for name in names}, **more, **{
        name: {info.path: info.num_records for info in infos or []} for name, infos in (
            ("input_files", data.train), ("eval_input_files", data.evaluation))}}


def _build(config, options, sentence_objective: str):
    """Builds the task and, for training, its optimizer; in the strategy's scope."""
    import tf_keras

    from albert_tf.modeling.pretraining import AlbertForPreTraining
    from albert_tf.training import losses, optimization, permutation, steps

    tf_keras.utils.set_random_seed(FLAGS.random_seed)
    sentence_loss = sentence_objective != "none"
    objective = losses.PRETRAINING if sentence_loss else losses.MASKED_LM_ALONE
    if FLAGS.objective == "permutation":
        model: AlbertForPreTraining = permutation.AlbertForPermutation(config)
        objective = dataclasses.replace(objective, metrics=permutation.metrics)
    else:
        model = AlbertForPreTraining(config)
    if not sentence_loss:
        # Without a gradient, weight decay alone would shrink them to zero.
        model.bert.pooler.trainable = model.seq_relationship.trainable = False
    task = steps.Task(
        model, objective, may_be_new=lambda name: name == QUERY_VECTOR,
        best_metric="permutation_accuracy" if FLAGS.objective == "permutation"
        else "masked_lm_accuracy")
    if not FLAGS.do_train:
        return task, None
    optimizer = optimization.create_optimizer(
        FLAGS.learning_rate, options.num_train_steps, FLAGS.num_warmup_steps,
        optimizer=FLAGS.optimizer, poly_power=FLAGS.poly_power,
        start_warmup_step=FLAGS.start_warmup_step, decay_share=FLAGS.decay_share)
    optimizer.build(model.trainable_variables)
    return task, optimizer


def _vocabulary(data: PretrainingData, output_dir: str
                ) -> tuple[Optional[dict[str, Any]], Optional[str]]:
    """Returns the vocabulary of the records and the path of its file, each None if it
    is not known. The file is copied into the model's folder."""
    from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

    path, known = FLAGS.spm_model_file or FLAGS.vocab_file, data.vocabulary
    if path:
        tokenizer = FullTokenizer(FLAGS.vocab_file, None, FLAGS.spm_model_file)
        facts = vocabulary_of(path)
        if known and known["sha256"] != facts["sha256"]:
            raise InputError(
                f"{path} is not the vocabulary that the records were made with "
                f"({known['file']}); give that one, or leave the flag out.")
        # Records without a summary do not say how their text was cleaned.
        known = known or {
            **facts, "size": tokenizer.vocab_size, **tokenizer.keeps,
            "kind": "SentencePiece" if tokenizer.uses_sentencepiece else "WordPiece",
            "do_lower_case": tokenizer.do_lower_case}
    if known:
        known = dict(known)
        start = FLAGS.init_checkpoint
        folders = {output_dir, *(os.path.dirname(info.path) for info in data.train),
                   *([folder_of(start)] if start else [])}
        path = model_vocabulary.file_of(known, [
            path, known.pop("path", ""),
            *(os.path.join(folder, known["file"]) for folder in sorted(folders))])
        if path:
            model_vocabulary.copy_of(output_dir, known, path)
            return known, path
    logging.warning(
        "The vocabulary of the records%s is not found, so --output_dir will hold none, "
        "and other scripts cannot read text with this model. Give it as "
        "--spm_model_file or --vocab_file.", f" ({known['file']})" if known else "")
    return known, None


def _check_objective(output_dir: str, options: dict[str, Any]) -> None:
    """Refuses to train for another objective than the run in output_dir so far, which
    has left out layers of it."""
    from albert_tf.training import run_folder

    if not holds_checkpoint(output_dir):
        return
    changes = run_folder.changed_options(output_dir, options)
    for name, default in (("sentence_objective", "order"), ("objective", "masked")):
        old, new = changes.get(name, (None, None))
        if old == "none" or name == "objective" and old != new:
            raise InputError(
                f"the run in {output_dir} was started with --{name}={old or default}, "
                f"but --{name} is now {new or default}. Choose a new --output_dir; give "
                "this folder as --init_checkpoint to start from its weights.")


def main(argv):
    cli_flags.use_old_flags()
    config = cli_flags.model_config(FLAGS)
    if FLAGS.recipe:
        recipe = PRETRAINING_RECIPES[FLAGS.recipe]
        use_recipe(FLAGS.recipe, {**recipe.training_for(config), **recipe.slots_at(
            FLAGS.max_seq_length)}, recipe.source)
    check_needs()
    if not (FLAGS.do_train or FLAGS.do_eval):
        raise InputError("nothing to do: give --do_train or --do_eval.")
    options = cli_flags.run_options(FLAGS, num_train_steps=FLAGS.num_train_steps)
    _check_memory(config, options)
    depth = depth_of(config, options.num_train_steps, FLAGS.depth_schedule)
    masking = _masking_options()
    data = PretrainingData.open(config, FLAGS)
    vocabulary, vocabulary_file = (
        _vocabulary(data, options.output_dir) if FLAGS.do_train else (None, None))
    files.make_directory(options.output_dir)

    strategy = devices.make_strategy(given(devices.DeviceOptions, FLAGS))
    from albert_tf.training import loop, run_folder

    if devices.is_chief(strategy):
        claim_run_folder(options.output_dir)
    streams = run_folder.streams(
        options.output_dir, sum(info.num_records for info in data.train),
        options.train_batch_size) if FLAGS.do_train else None
    task_options = _task_options(data, streams)
    with contextlib.ExitStack() as stack:
        if FLAGS.do_train:
            stack.enter_context(run_folder.held(options.output_dir, strategy))
        if FLAGS.do_train or FLAGS.objective != "masked":
            _check_objective(options.output_dir, task_options)
        stack.enter_context(strategy.scope())
        task, optimizer = _build(config, options, data.sentence_objective)
        run = loop.Run(
            task, config, options,
            data.batches(options, masking, config, streams, FLAGS.random_seed,
                         FLAGS.max_eval_steps),
            optimizer, task_options, depth,
            data.evaluation_set(options.eval_batch_size, FLAGS.max_eval_steps))
        if not FLAGS.do_train:
            run.evaluate()
            return

        def keep_vocabulary():
            if vocabulary:
                model_vocabulary.keep(options.output_dir, vocabulary, vocabulary_file)

        run.train(keep_vocabulary)


if __name__ == "__main__":
    script.run(main, first_flags=(
        "input_file eval_input_file output_dir model albert_config_file "
        "init_checkpoint max_seq_length max_predictions_per_seq train_batch_size "
        "gradient_accumulation_steps num_train_steps num_warmup_steps "
        "learning_rate recipe dtype recompute save_checkpoints_steps "
        "distribution_strategy tpu resume_from"))
