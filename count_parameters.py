"""Prints the number of parameters of every published size, and compares the models of
the paper's Tables 1, 3 and 4 with its rounded figures. With flags: of one model.

  python count_parameters.py
  python count_parameters.py --model=base \\
    --config_overrides=embedding_size=768,parameter_sharing=attention
  python count_parameters.py --albert_config_file=albert_config.json

"encoder" counts the embeddings and the layers, "with pooler" all of AlbertModel, "with
heads" all of AlbertForPreTraining. The paper does not say what it counts. Its shared
ALBERT models agree with the count that includes the pooler, its unshared ones and BERT
with the count without it. Its xlarge and xxlarge agree with none of the three counts.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

from absl import flags

from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import define
from albert_tf.config import NAMED, SHARING, AlbertConfig
from albert_tf.modeling.parameter_count import count_parameters

FLAGS = flags.FLAGS

define(cli_flags.ModelOptions)

COUNTED = ("encoder", "with pooler", "with heads")

# The paper's figures, in millions. Table 1 has the named sizes.
TABLE_1 = {
    "bert-base": 108, "bert-large": 334, "bert-xlarge": 1270,
    "base": 12, "large": 18, "xlarge": 60, "xxlarge": 235,
}
# Table 3 (base): embedding size → figures with nothing and with everything shared.
TABLE_3 = {64: (87, 10), 128: (89, 12), 256: (93, 16), 768: (108, 31)}
# Table 4 (base): embedding size → what is shared → figure.
TABLE_4 = {
    768: {"all": 31, "attention": 83, "ffn": 57, "none": 108},
    128: {"all": 12, "attention": 64, "ffn": 38, "none": 89},
}


def paper_tables():
    """Returns table number → (label, config, the paper's figure) of its models."""
    def base(size, sharing, millions):
        return (f"base, E={size}, shared: {sharing}", AlbertConfig.named(
            "base", embedding_size=size, parameter_sharing=sharing), millions)

    return {
        1: [(name, AlbertConfig.named(name), millions)
            for name, millions in TABLE_1.items()],
        3: [base(size, sharing, figures[column])
            for column, sharing in enumerate(("none", "all"))
            for size, figures in TABLE_3.items()],
        4: [base(size, sharing, figures[sharing])
            for size, figures in TABLE_4.items() for sharing in SHARING]}


def print_table(header, rows):
    """Prints rows of text; the first and the last column are aligned left."""
    rows = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *cells, last in rows:
        middle = (cell.rjust(width) for cell, width in zip(cells, widths[1:]))
        print("  ".join((first.ljust(widths[0]), *middle, last)).rstrip())
    print()


def numbers(count):
    return [f"{count[part]:,}" for part in COUNTED]


def note(count, millions):
    """Returns a note that says how the paper's figure agrees with the exact counts.

    The paper does not say whether it counts the pooler; the count with it comes first.
    """
    # The paper gives BERT-xlarge's figure to three digits only.
    unit = 10 if millions >= 1000 else 1
    for name, part in (("with pooler", "with pooler"), ("without pooler", "encoder")):
        if round(count[part] / (unit * 1e6)) * unit == millions:
            return f"agrees {name}"
    ours = count["with pooler"] / 1e6
    return (f"DIFFERS: {ours:.1f}M with pooler, {abs(millions - ours):.1f}M "
            f"{'under' if millions > ours else 'over'} the paper's figure")


def main(argv):
    if FLAGS.model or FLAGS.albert_config_file or FLAGS.config_overrides:
        count = count_parameters(cli_flags.model_config(FLAGS))
        print_table(("part", "parameters", ""), [
            (part, f"{number:,}", "") for part, number in count.items()])
        return
    print_table(("published size", *COUNTED, ""), [
        (name, *numbers(count_parameters(AlbertConfig.named(name))), "")
        for name in NAMED])
    for table, rows in paper_tables().items():
        print_table((f"Table {table}", *COUNTED, "paper", ""), [
            (label, *numbers(count), f"{millions}M", note(count, millions))
            for label, config, millions in rows
            for count in [count_parameters(config)]])


if __name__ == "__main__":
    script.run(main)
