"""What a task of fine-tuning is, and how a command runs one.

What is particular to a task (its files, its features, its head, its score) is a `FineTuningTask`, in a folder of its own; what a command says of any task is
`Settings`. `finetuning.course` does the rest.
"""

import abc
import dataclasses
import functools
import types
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.modeling.heads import Head
from albert_tf.records.spec import FeatureSpec
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training.options import RunOptions


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a command fine-tunes, whatever the task.

    Attributes:
      run: how the run goes; a task may change num_train_steps (`schedule`).
      vocabulary: the tokenizer's file.
      make_strategy: returns the tf.distribute strategy of the devices.
      data: split → where its data are, as `FineTuningTask.read` takes it.
      dropout_prob: dropout rate of what the head gets.
      max_seq_length: the longest sequence, in tokens.
      num_lengths: static lengths that sequences are padded to; 1 pads all to
        max_seq_length, as the original implementation does.
      predict_batch_size: examples per batch of prediction, all replicas together.
      num_workers: processes that make features; 0: one for each core.
      features_dir: folder of the features, unless feature_files says otherwise.
      feature_files: split → the flag that names its file of features, and the file,
        "" where the flag was not given.
      export_dir: folder for a SavedModel of the best checkpoint; "" for none.
      kept: what task.json keeps of the task.
      options: what options.json keeps besides the options of the run.
      prediction_file: replaces predictions.tsv (tables.write_predictions); "" does not.
      all_probabilities: write the probability of each label among the predictions.
      num_seeds: runs to train, each with another seed (finetuning.seeds).
      restart_on_failure: train a run that failed again, with another seed and a lower
        learning rate.
      teacher: a model that training learns from too, "" for none (training.distillation,
        as teacher_weight, temperature and teacher_hidden_weight).
      check_memory: raises InputError if a batch does not fit into the memory of this
        machine; takes the flag of a batch's size → what the batch consists of.
    """

    run: RunOptions
    config: AlbertConfig
    tokenizer: FullTokenizer
    vocabulary: str
    make_strategy: Callable[[], Any]
    do_train: bool
    do_eval: bool
    do_predict: bool
    data: Mapping[str, str]
    learning_rate: float
    num_warmup_steps: int
    optimizer: str
    dropout_prob: float
    max_seq_length: int
    num_lengths: int
    predict_batch_size: int
    num_workers: int
    features_dir: str
    do_lower_case: bool
    export_dir: str
    kept: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    feature_files: Mapping[str, tuple[str, str]] = dataclasses.field(
        default_factory=dict)
    prediction_file: str = ""
    all_probabilities: bool = False
    num_seeds: int = 1
    restart_on_failure: bool = False
    teacher: str = ""
    teacher_weight: float = 0.5
    temperature: float = 2.0
    teacher_hidden_weight: float = 0.0
    check_memory: Callable[..., None] = lambda **batches: None

    @property
    def several(self) -> bool:
        """Whether runs get folders of their own."""
        return self.do_train and (self.num_seeds > 1 or self.restart_on_failure)


class FineTuningTask(abc.ABC):
    """What is particular to a task, apart from how a command runs it.

    `data` is what `read` returned, `table` holds its features, and `outputs` are the
    objective's predictions: name → an array for each row of the table.

    Attributes:
      main_metric: the one that the best checkpoint is chosen by; higher is better.
      evaluation_split, prediction_split: names of the sets beside "train".
      code: modules that make the features, besides the task's own and those that all
        tasks share.
      vectors_of_piece: of the encoder's width, that the head makes of each token in
        evaluation.
    """

    main_metric: str
    evaluation_split, prediction_split = "dev", "test"
    code: Sequence[types.ModuleType] = ()
    vectors_of_piece = 0

    # ---- data and features -------------------------------------------------

    @abc.abstractmethod
    def read(self, where: str, split: str) -> Any:
        """The examples of a split, checked: an ExampleSet, or what has its fields."""

    def schedule(self, num_examples: int, settings: Settings) -> tuple[int, int]:
        """Training steps, and those of them with warm-up."""
        del num_examples
        return settings.run.num_train_steps, settings.num_warmup_steps

    @abc.abstractmethod
    def spec(self, config: AlbertConfig) -> FeatureSpec:
        """What a record holds."""

    @abc.abstractmethod
    def featurize(self, example: Any, *, tokenizer: FullTokenizer, **options: Any
                  ) -> list[dict[str, Any]]:
        """The features of an example, a dict for each record."""

    def featurizer(self, split: str, settings: Settings
                   ) -> Callable[[Any], list[dict[str, Any]]]:
        """`featurize` with its options; can be pickled."""
        del split
        return functools.partial(self.featurize, tokenizer=settings.tokenizer)

    def records(self, featurized: Iterable[list[dict[str, Any]]]
                ) -> Iterator[dict[str, Any]]:
        """The records of all examples, each example's as `featurize` made them."""
        for features_of_example in featurized:
            yield from features_of_example

    def sources(self, split: str, data: Any) -> dict[str, str]:
        """What a split's features are made of → a digest of its content."""
        return {f"{split} data": files.sha256(path) for path in data.paths}

    @abc.abstractmethod
    def feature_settings(self, split: str) -> dict[str, Any]:
        """What else the features depend on, besides vocabulary and length."""

    def check_features(self, sets: Mapping[str, Any],
                       tables: Mapping[str, FeatureTable], settings: Settings) -> None:
        """Reports examples without features, if a task has any."""

    # ---- model and results -------------------------------------------------

    @abc.abstractmethod
    def head(self, settings: Settings) -> Head:
        """The head on the encoder: its outputs and what it learns."""

    @abc.abstractmethod
    def score(self, data: Any, outputs: Mapping[str, Any],
              table: FeatureTable) -> Mapping[str, float]:
        """The evaluation set's metrics, `main_metric` among them."""

    def failure(self, data: Any, outputs: Mapping[str, Any],
                table: FeatureTable) -> str:
        """What in the evaluation set's outputs shows that the model has not learned,
        "" for nothing: one class for all, for example."""
        return ""

    def chance_loss(self, data: Any, table: FeatureTable) -> Optional[float]:
        """The training loss of a model that knows nothing, if that can be told."""
        return None

    @abc.abstractmethod
    def write(self, split: str, data: Any, outputs: Mapping[str, Any],
              table: FeatureTable, step: int, settings: Settings) -> None:
        """Writes predictions and reports; only one process of a cluster does."""

    def kept_options(self, settings: Settings) -> dict[str, Any]:
        """What options.json keeps besides the options of the run."""
        return dict(settings.options)
