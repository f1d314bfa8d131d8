"""The paper's settings for fine-tuning on each task (table 14 of its appendix)."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of one task. `albert_dropout` is both dropout rates inside the model, of
    hidden values and of attention probabilities; `classifier_dropout` is that before
    the task's head. Steps include `warmup_steps`, at whose end the rate is
    `learning_rate`.

        RECIPES["sst-2"].batch_size  # 32
    """

    albert_dropout: float
    classifier_dropout: float
    batch_size: int
    learning_rate: float
    num_train_steps: int
    warmup_steps: int
    max_seq_length: int


_MNLI = Recipe(0.0, 0.1, 128, 3e-5, 10000, 1000, 512)

# By task name, as --task_name has it.
RECIPES = {
    "cola": Recipe(0.0, 0.1, 16, 1e-5, 5336, 320, 512),
    "sts-b": Recipe(0.0, 0.1, 16, 2e-5, 3598, 214, 512),
    "sst-2": Recipe(0.0, 0.1, 32, 1e-5, 20935, 1256, 512),
    "mnli": _MNLI,
    # The same training set as MNLI; AX is predicted with an MNLI model.
    "mismnli": _MNLI,
    "ax": _MNLI,
    "qnli": Recipe(0.0, 0.1, 32, 1e-5, 33112, 1986, 512),
    "qqp": Recipe(0.1, 0.1, 128, 5e-5, 14000, 1000, 512),
    "rte": Recipe(0.1, 0.1, 32, 3e-5, 800, 200, 512),
    "mrpc": Recipe(0.0, 0.1, 32, 2e-5, 800, 200, 512),
    "wnli": Recipe(0.1, 0.1, 16, 2e-5, 2000, 250, 512),
    "squad-1.1": Recipe(0.0, 0.1, 48, 5e-5, 3649, 365, 384),
    "squad-2.0": Recipe(0.0, 0.1, 48, 3e-5, 8144, 814, 512),
    "race": Recipe(0.1, 0.1, 32, 2e-5, 12000, 1000, 512),
    # For version 2 of the released models, which diverge with the line above (the
    # release's README).
    "race-v2": Recipe(0.0, 0.1, 32, 1e-5, 12000, 1000, 512),
}
