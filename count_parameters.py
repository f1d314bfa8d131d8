"""Prints the number of parameters: of every published size, and of the models in
Tables 1, 3 and 4 of the paper beside its rounded figures; or of one model.

  python count_parameters.py
  python count_parameters.py --model=base \\
    --config_overrides=embedding_size=768,parameter_sharing=attention
  python count_parameters.py --albert_config_file=albert_config.json

"encoder" is the embeddings and the layers, "with pooler" all of AlbertModel, "with
heads" all of AlbertForPreTraining. The paper does not say what it counts: its
shared ALBERT models agree with the pooler counted, its unshared ones and BERT
without. Its xlarge and xxlarge agree with neither, nor with the heads counted too.
"""

from absl import flags

from albert_tf.cli import flags as cli_flags
from albert_tf.modeling.parameter_count import (
    agreement, count_parameters, named_counts, paper_rows)

FLAGS = flags.FLAGS

cli_flags.define_model_flags()
flags.adopt_module_key_flags(cli_flags)  # --help lists them too.

PARTS = (("embeddings", "embeddings"), ("projection E to H", "projection"),
         ("attention sub-layers", "attention"),
         ("feed-forward sub-layers", "feed_forward"),
         ("encoder", "without_pooler"), ("pooler", "pooler"),
         ("with pooler", "with_pooler"), ("pretraining heads", "heads"),
         ("with heads", "with_heads"))


def print_table(header, rows):
    """Prints rows of text; the first column and the last are set left."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    last = len(header) - 1
    for row in (header, *rows):
        cells = (cell.ljust(width) if i in (0, last) else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
    print()


def print_one(config):
    count = count_parameters(config)
    print_table(("part", "parameters", ""), [
        (label, f"{getattr(count, field):,}", "") for label, field in PARTS])


def numbers(count):
    return tuple(f"{value:,}" for value in (
        count.without_pooler, count.with_pooler, count.with_heads))


def note(count, millions):
    """How the paper's figure and the exact counts go together."""
    agrees = agreement(count, millions)
    if agrees:
        return f"agrees {agrees}"
    gap = millions - count.with_pooler / 1e6
    return (f"DIFFERS: {count.with_pooler / 1e6:.1f}M with pooler, "
            f"{abs(gap):.1f}M {'under' if gap > 0 else 'over'} the paper's figure")


def main(argv):
    del argv
    if FLAGS.model or FLAGS.albert_config_file or FLAGS.config_overrides:
        print_one(cli_flags.model_config())
        return
    print_table(("published size", "encoder", "with pooler", "with heads", ""), [
        (name, *numbers(count), "") for name, count in named_counts().items()])
    rows = paper_rows()
    for table in sorted({row.table for row in rows}):
        counted = [(row, count_parameters(row.config))
                   for row in rows if row.table == table]
        print_table(
            (f"Table {table}", "encoder", "with pooler", "with heads", "paper", ""),
            [(row.label, *numbers(count), f"{row.millions}M",
              note(count, row.millions)) for row, count in counted])


if __name__ == "__main__":
    cli_flags.run(main)
