"""Flags of scripts that use a trained model, and the model that they name."""

import os
from typing import Any, Mapping, Optional

from absl import flags

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.checkpoints import checkpoint, formats
from albert_tf.checkpoints.folders import is_of_run
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.cli.flags import MOST, Number
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs.progress import amount
from albert_tf.training.memory import Sequences, evaluation_memory
from albert_tf.training.options import StepOptions

FLAGS = flags.FLAGS

# Texts of a file that are held at a time.
_HELD = 1024


def define_flags() -> None:
    flags.DEFINE_string("model", None, "Folder of the model, or a checkpoint in it.",
                        required=True)
    for name, kind in (("vocab_file", "WordPiece vocabulary"),
                       ("spm_model_file", "SentencePiece model")):
        flags.DEFINE_string(name, None, f"{kind}, where the folder has none.")
    flags.DEFINE_bool("do_lower_case", True,
                      "Whether that vocabulary is of lower case.")


def define_exit_flags() -> None:
    flags.DEFINE(
        Number(upper_bound=1), "exit_threshold", None, "Of a model trained with "
        "--early_exit: a text is done after the first pass that gives a label a higher "
        "probability (docs/EARLY_EXIT.md); default: all passes.")


def define_batch_size(upper_bound: int = MOST) -> None:
    flags.DEFINE_integer("batch_size", 32, "Sequences that are computed together.",
                         lower_bound=1, upper_bound=upper_bound)


def check_batch_size(config: AlbertConfig, settings: Mapping[str, Any],
                     most: int = _HELD) -> None:
    """Refuses a --batch_size that the memory has not got where texts are as long as a
    model of these settings (task.json) takes them. Without the flag a text at a time
    may have to fit."""
    examples = min(FLAGS.batch_size, most)
    length = min(settings.get("flags", {}).get("max_seq_length", 512),
                 config.max_position_embeddings)
    needed = evaluation_memory(config, StepOptions(), examples, Sequences(length))
    free = parallel.available_memory()
    if FLAGS["batch_size"].present and not parallel.has_accelerator() and needed > free:
        raise InputError(
            f"--batch_size={FLAGS.batch_size}: {examples} sequences of {length} pieces at "
            f"once take at least {amount(needed)} of memory, but {amount(free)} are "
            "free; give a smaller one.")


def check_task() -> None:
    """Refuses a --task that no head does, before the model is loaded."""
    known = checkpoint.tasks()
    if FLAGS.task and FLAGS.task not in known:
        raise InputError(
            f"--task={FLAGS.task} is not known; give one of {', '.join(known)}.")


def check_output(flag: str, path: str) -> None:
    """Refuses to write over a file of the model. Its folder may hold answers, which are
    JSON lines, too."""
    folder = formats.folder_of_model(FLAGS.model)
    own = not path.endswith(".jsonl") or is_of_run(os.path.basename(path))
    files.prepare_outputs({flag: [path]}, {
        "--model": [folder] if own else [],
        **{f"--{name}": [FLAGS[name].value] for name in ("vocab_file", "spm_model_file")
           if FLAGS[name].value}})


def vocabulary() -> Optional[Vocabulary]:
    """That of the flags, if there is one."""
    if FLAGS.vocab_file and FLAGS.spm_model_file:
        raise InputError("--vocab_file and --spm_model_file are two vocabularies; give "
                         "one of them.")
    path = FLAGS.vocab_file or FLAGS.spm_model_file
    if path and not files.exists(path):
        name = "vocab_file" if FLAGS.vocab_file else "spm_model_file"
        raise InputError(f"--{name}: {path} is not there; check the path.")
    return Vocabulary(path, FLAGS.do_lower_case, bool(FLAGS.vocab_file)) if path else None


def load():
    """The albert_tf.load of --model."""
    given = vocabulary()
    import albert_tf

    return albert_tf.load(FLAGS.model, vocabulary=given)
