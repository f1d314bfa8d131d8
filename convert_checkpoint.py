r"""Converts an ALBERT from one format into another, with heads, labels and tokenizer.

    python convert_checkpoint.py --input=albert-base-v2 --output=albert --format=tf1
    python convert_checkpoint.py --input=runs/sst-2 --output=sst-2 --format=hf
    python convert_checkpoint.py --input=runs/base --output=vectors \
        --format=sentence_transformers
    python convert_checkpoint.py --input=albert_base/model.ckpt-best \
        --output=preset --format=keras_hub --encoder_only

The input is anything that `albert_tf.load` accepts: a checkpoint or folder from the
original implementation, this project, Hugging Face, keras-hub, tf-models or
sentence-transformers, or a TensorFlow Hub module. The report names every tensor that
was dropped, and why. Numbers are not changed. A model that the output format cannot
express is an error. TensorFlow is needed only to write `tf1` and `tf_models`.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

from absl import flags, logging

from albert_tf.checkpoints import checkpoint
from albert_tf.checkpoints.formats import FORMATS, convert
from albert_tf.checkpoints.sentence_transformers import POOLING
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import define
from albert_tf.options import MOST

FLAGS = flags.FLAGS

flags.DEFINE_string("input", None, "The model to convert: a folder, or a checkpoint in "
                    "it.", required=True)
flags.DEFINE_string("output", None, "The folder to write; it must not exist.",
                    required=True)
flags.DEFINE_enum("format", None, list(FORMATS), "The format to write.", required=True)
define(cli_flags.ModelOptions)
for _name in ("albert_config_file", "model"):
    FLAGS[_name].help += " Needed only if the input's folder holds no config."
flags.DEFINE_enum(
    "head", "", ["", *checkpoint.ROOT_HEADS], "The head that `output_weights` in a TF1 "
    "checkpoint belong to, if the folder does not say it; default: classification.")
flags.DEFINE_bool("encoder_only", False, "Leave the heads out.")
flags.DEFINE_enum("dtype", "float32", list(checkpoint.TYPES),
                  "For hf: the type of the numbers in the file.")
flags.DEFINE_bool(
    "optimizer_state", False, "For tf1: also write LAMB's moments and the step (zeros "
    "if the input has none), so that training can continue.")
flags.DEFINE_string(
    "pooling", "", "For sentence_transformers: how token vectors are pooled into a "
    f"sentence embedding: {', '.join(POOLING)}, several of these separated by commas, "
    "or pooled (ALBERT's own pooler); default: as in the input, else mean.")
flags.DEFINE_integer(
    "max_seq_length", None, "For sentence_transformers: maximum number of tokens of a "
    "text; default: as in training, else the number of positions of the model.",
    lower_bound=1, upper_bound=MOST)
define(cli_flags.UsedModel,
       without="model vocab_file spm_model_file do_lower_case engine")
flags.DEFINE_bool("allow_nan", False, "Accept weights that are NaN or infinite.")


def main(argv):
    has_config = FLAGS.albert_config_file or FLAGS.model or FLAGS.config_overrides
    report = convert(
        FLAGS.input, FLAGS.output, FLAGS.format,
        cli_flags.model_config(FLAGS) if has_config else None, head=FLAGS.head,
        encoder_only=FLAGS.encoder_only, dtype=FLAGS.dtype,
        optimizer_state=FLAGS.optimizer_state, allow_nan=FLAGS.allow_nan,
        pooling=FLAGS.pooling, max_seq_length=FLAGS.max_seq_length or 0,
        labels=FLAGS.labels)
    for line in report.summary(most=12).splitlines():
        logging.info("%s", line)
    logging.info("Wrote %s.", FLAGS.output)


if __name__ == "__main__":
    script.run(main)
