r"""Measures how much each layer changes its input, by L2 distance and cosine
similarity, as in the paper's figure for BERT-large and ALBERT-large (section 3.1).

    python analyze_layers.py --model=runs/bert,runs/albert --titles=BERT,ALBERT \
        --input_file=heldout.txt --spm_model_file=spm.model \
        --output=layers.json --picture=layers.png

A model is any model that `albert_tf.load` accepts, with any sharing of parameters. A
file holds one text per line, optionally with a second text after a tab, or JSON lines,
or a table with its columns, as for extract_features.py; blank lines are left out. The
input of the first layer is the projected embeddings. Means and standard deviations are
over all tokens, including [CLS] and [SEP] but not padding.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools

from absl import flags, logging

from albert_tf import files, text_files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import folder_of
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from albert_tf.features import extract, layer_distances
from albert_tf.features.extract import Options
from albert_tf.jobs.progress import Progress
from albert_tf.training import devices

FLAGS = flags.FLAGS

define(cli_flags.UsedModel, cli_flags.Columns, Options,
       without="labels engine pooling layers windows truncated")
flags.DEFINE_list("titles", [], "Comma-separated titles of the models in table and "
                  "figure; default: their paths.")
flags.DEFINE_string("albert_config_file", None, "JSON file with the model's "
                    "configuration, for folders without one.")
flags.DEFINE_string("input_file", None, "Comma-separated paths or globs of text files.",
                    required=True)
flags.DEFINE_string("output", None, "JSON file for the numbers; default: none.")
flags.DEFINE_string("picture", None, "PNG file for the curves; default: none.")


def main(argv):
    models = files.split_names(FLAGS.model)
    titles = FLAGS.titles or models
    if len({*titles}) != len(models):
        raise InputError(f"--titles={','.join(titles)}: there are {len(models)} "
                         "models; give each its own title.")
    paths = files.expand_patterns(FLAGS.input_file, "--input_file")
    files.prepare_outputs(
        {f"--{name}": [path] for name in ("output", "picture")
         if (path := FLAGS[name].value)}, {"--input_file": paths, "--model": [
             folder_of(model) for model in models if not formats.is_hub(model)]})
    vocabulary, config, chosen = cli_flags.vocabulary(), FLAGS.albert_config_file, {}
    for model in models:
        checkpoint = formats.read(model, config, vocabulary=vocabulary)
        chosen[model] = Options(
            ["pieces"], [*range(checkpoint.config.num_hidden_layers + 1)],
            FLAGS.max_seq_length, FLAGS.batch_size).of(checkpoint)
    texts = functools.partial(extract.texts, paths, cli_flags.columns({}), blank=False)
    count = sum(1 for _ in texts())
    logging.info("Running on %s.", devices.hardware())
    distances = {title: {
        "model": model, "max_seq_length": chosen[model].max_seq_length,
        **layer_distances.measure(extract.stream(
            extract.load(model, chosen[model], vocabulary, config), texts(),
            FLAGS.batch_size, Progress(f"measuring {title}", "texts", count)))}
        for model, title in zip(models, titles)}
    print(layer_distances.table(distances))
    if FLAGS.output:
        text_files.write_json(FLAGS.output, {"input_file": paths, "models": distances})
    if FLAGS.picture:
        layer_distances.draw(distances, FLAGS.picture)


if __name__ == "__main__":
    script.run(main)
