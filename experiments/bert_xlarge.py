"""Compares BERT-large with a BERT of twice its width (table 1 and figure 1 of the
paper's first version).

    python -m experiments.bert_xlarge --scale=small

The picture corresponds to figure 1: training loss and held-out masked-LM accuracy. At
the small scale BERT-xlarge is one and a half times as wide as BERT-large.
"""

from albert_tf.cli import script
from experiments.scales import Row
from experiments.tables import Experiment

EXPERIMENT = Experiment(
    "bert_xlarge", "BERT-large against BERT-xlarge (table 1, figure 1 of version 1)", [
        Row("BERT-large", "bert-large", paper={"parameters": 334, "RACE": 73.9}),
        Row("BERT-xlarge", "bert-xlarge", paper={"parameters": 1270, "RACE": 54.3})],
    {"BERT-xlarge is worse than BERT-large": lambda means: (
        means["BERT-xlarge"]["MLM, articles"] < means["BERT-large"]["MLM, articles"])},
    notes=(
        "BERT-xlarge has the higher masked-LM accuracy at every evaluation, by 0.3 to 0.9 "
        "points. Its embeddings are one and a half times as wide, and its 12 million "
        "parameters are far below the size at which the paper's model degrades. After "
        "fine-tuning it is worse, as the paper's model is on RACE. However, both models "
        "fine-tune badly at the learning rate that all tables use (ALBERT-base reaches "
        "77 % on SST-2), and BERT-xlarge always predicts MRPC's larger class. One seed."))


if __name__ == "__main__":
    script.run(EXPERIMENT.run)
