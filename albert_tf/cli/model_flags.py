"""Flags of scripts that use a trained model, and the model that they name."""

import dataclasses

from absl import flags

from albert_tf.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_string("model", None, "Folder of the model, or a checkpoint in it.",
                        required=True)
    for name, kind in (("vocab_file", "WordPiece vocabulary"),
                       ("spm_model_file", "SentencePiece model")):
        flags.DEFINE_string(name, None, f"{kind}, where the folder has none.")
    flags.DEFINE_bool("do_lower_case", True,
                      "Whether that vocabulary is of lower case.")


def load():
    """The albert_tf.load of --model, with the vocabulary of the flags if there is one."""
    import albert_tf
    from albert_tf.tokenization.tokenizer import FullTokenizer

    made = (FLAGS.vocab_file or FLAGS.spm_model_file) and FullTokenizer(
        FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.spm_model_file)
    loaded = albert_tf.load(FLAGS.model)
    if not made:
        return loaded
    if made.vocab_size != loaded.config.vocab_size:
        raise InputError(
            f"{made.vocabulary_path} has {made.vocab_size} pieces, but the model's "
            f"vocab_size is {loaded.config.vocab_size}; give the vocabulary that the "
            "model was made with.")
    return dataclasses.replace(loaded, tokenizer=made)
