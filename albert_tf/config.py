"""Defines the shape of a model: `AlbertConfig`, its JSON file, the published sizes.

"The original" is Google's TF1 implementation of ALBERT. Values called "release" and
names like `_NOT_RELEASED` refer to it.
"""

import dataclasses
import importlib
import json
from typing import Any, Mapping

from albert_tf import text_files
from albert_tf.errors import InputError

ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# Sizes must fit into 32-bit indices. Layers, groups and blocks are limited further,
# because each of them is built: a model with more would take hours to construct.
_LARGEST_SIZE = 2**31 - 1
_LARGEST_COUNTS = dict(
    num_hidden_layers=1000, num_hidden_groups=1000, inner_group_num=1000)
_LARGEST_DEVIATION = 10.0
_LARGEST_EPSILON = 1.0

_HUGGINGFACE = "albert_tf.checkpoints.huggingface"

# Data types in which the layers can compute; variables are always float32.
DTYPES = ("float32", "bfloat16", "float16")

# Name of the config file in a checkpoint's folder.
CONFIG_FILE = "albert_config.json"

# Which parameters the layers share ("Cross-layer parameter sharing", section 3.1 and
# Table 4 of the paper): all, only those of attention, only those of the feed-forward
# network, or none.
SHARING = ("all", "attention", "ffn", "none")

# Formulas for the group of layer l, for L layers in G groups. They differ only by
# rounding, and only for a few L and G, such as 22 layers in 22 groups.
GROUPINGS = {
    "release": lambda l, L, G: int(l / L * G),
    "huggingface": lambda l, L, G: int(l / (L / G)),
    "even": lambda l, L, G: l * G // L,
}


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """The hyperparameters of an ALBERT encoder, named as in the released JSON files.

        AlbertConfig.named("base", vocab_size=21128)
        AlbertConfig.from_json_file("albert_config.json")

    The defaults are those of the original's `modeling.AlbertConfig`. E is much smaller
    than H (section 3.1 of the paper): an embedding holds what a token means by itself,
    a hidden state what it means in its context, which takes more numbers. V x E + E x H
    parameters therefore replace BERT's V x H. BERT is the case `embedding_size ==
    hidden_size` with `parameter_sharing == "none"`.
    """

    vocab_size: int = 30000  # V
    embedding_size: int = 128  # E
    hidden_size: int = 4096  # H
    num_hidden_layers: int = 12  # L
    num_hidden_groups: int = 1  # G; layers of one group share their parameters
    num_attention_heads: int = 64  # in a layer; divides H
    intermediate_size: int = 16384  # width of the feed-forward sub-layer
    inner_group_num: int = 1  # blocks inside each layer
    down_scale_factor: int = 1  # in the released files, but never used
    # Activation of the feed-forward sub-layer and of the masked-LM head, one of
    # ACTIVATIONS. "gelu" is the tanh approximation (Hugging Face's "gelu_new"),
    # "gelu_erf" the exact function (Hugging Face's "gelu").
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0  # of embeddings and sub-layer outputs
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512  # longest sequence
    type_vocab_size: int = 2  # number of segment ids
    initializer_range: float = 0.02  # standard deviation of the initial weights
    # The fields below are not in the released files. They are written to JSON only if
    # they differ from their defaults.
    parameter_sharing: str = "all"  # one of SHARING
    # Details in which other libraries' models differ, so that ours give their outputs.
    layer_norm_eps: float = 1e-12
    masked_lm_layer_norm_eps: float = 0.0  # of the masked-LM head; 0: layer_norm_eps
    use_pooler: bool = True
    project_embeddings: bool = False  # project the embeddings even if E = H
    layer_grouping: str = "release"  # one of GROUPINGS
    # Unknown keys of the JSON file, stored so that they can be written back.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        # 1. Types first, since every comparison below relies on them; then the sizes.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _check_type(field, value)
            largest = _LARGEST_COUNTS.get(field.name, _LARGEST_SIZE)
            if field.type is int and field.name != "down_scale_factor" and not (
                    1 <= value <= largest):
                raise InputError(
                    f"config: {field.name} is {shown(value)}; it must be from 1 to "
                    f"{largest}.")
        # 2. Dropout rates, the initial deviation, epsilons: their sensible ranges.
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"config: {name} is {shown(getattr(self, name))}; a dropout rate "
                    "is at least 0 and below 1.")
        if not 0 < self.initializer_range <= _LARGEST_DEVIATION:
            raise InputError(
                f"config: initializer_range is {shown(self.initializer_range)}; a "
                "standard deviation of weights is above 0 and at most "
                f"{_LARGEST_DEVIATION:g}.")
        for name in ("layer_norm_eps", "masked_lm_layer_norm_eps"):
            if not 0 <= getattr(self, name) <= _LARGEST_EPSILON:
                raise InputError(
                    f"config: {name} is {shown(getattr(self, name))}; it must be from "
                    f"0 to {_LARGEST_EPSILON:g}.")
        # 3. Each head takes an equal part of the hidden state, so H must divide evenly.
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"config: hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}.")
        # 4. Last, the fields that name one of a few choices.
        for name, choices in (("hidden_act", ACTIVATIONS),
                              ("parameter_sharing", SHARING),
                              ("layer_grouping", tuple(GROUPINGS))):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"config: {name} is '{getattr(self, name)}'; it must be one of "
                    f"{', '.join(choices)}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AlbertConfig":
        """Makes a config from the keys of a JSON file; unknown keys go to `extra`.

        A Hugging Face config.json, recognised by its keys `model_type` or
        `architectures`, is translated: its "gelu" becomes `gelu_erf`, for example.
        """
        names = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        entries = dict(values)
        if "model_type" in entries or "architectures" in entries:
            # The module of that format translates it. It is imported only now, so that
            # the core does not depend on formats.
            entries = importlib.import_module(_HUGGINGFACE).config_values(entries)
        elif entries.get("hidden_act") == "gelu_new":
            entries["hidden_act"] = "gelu"
        # The original writes null for the linear activation.
        if entries.get("hidden_act", "") is None:
            entries["hidden_act"] = "linear"
        extra = {k: v for k, v in entries.items() if k not in names}
        return cls(**{k: v for k, v in entries.items() if k in names},
                   extra=extra).simplified()

    @classmethod
    def from_json_file(cls, path: str) -> "AlbertConfig":
        """Reads `albert_config.json`."""
        values = text_files.read_object(path)
        if "vocab_size" not in values:
            raise InputError(
                f"{path}: no vocab_size; is this an ALBERT config file?")
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def named(cls, name: str, **changes) -> "AlbertConfig":
        """Returns a published size, one of NAMED ("base", "xxlarge-v2", "bert-base"),
        with some fields changed, such as vocab_size=21128."""
        if name not in NAMED:
            raise InputError(
                f"no model is named '{name}'; known: {', '.join(NAMED)}.")
        return cls(**NAMED[name]).replace(**changes)

    def simplified(self) -> "AlbertConfig":
        """Returns an equal config whose fields without effect have their defaults."""
        changes: dict[str, Any] = {}
        if self.embedding_size != self.hidden_size:
            changes["project_embeddings"] = False
        if self.masked_lm_layer_norm_eps == self.layer_norm_eps:
            changes["masked_lm_layer_norm_eps"] = 0.0
        # Usually all formulas give the layers the same groups; then use the default.
        if self.layer_grouping != "release":
            default = dataclasses.replace(self, layer_grouping="release")
            if all(default.group_of_layer(layer) == self.group_of_layer(layer)
                   for layer in range(self.num_hidden_layers)):
                changes["layer_grouping"] = "release"
        return dataclasses.replace(self, **changes) if changes else self

    def replace(self, **changes) -> "AlbertConfig":
        """Returns a copy with some fields changed; strings are converted to the field's
        type."""
        types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in types or name == "extra":
                raise InputError(
                    f"config: no field is named '{name}'; the fields are "
                    f"{', '.join(n for n in types if n != 'extra')}.")
            # Command-line flags arrive as strings: convert them to the field's type.
            if isinstance(value, str) and types[name] is not str:
                converter = _boolean if types[name] is bool else types[name]
                try:
                    changes[name] = converter(value)
                except (KeyError, ValueError) as error:
                    expectation = ("true or false" if types[name] is bool
                                   else f"a number ({types[name].__name__})")
                    raise InputError(f"config: {name} is {shown(value)}; it must be "
                                     f"{expectation}.") from error
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys and values of the JSON file."""
        values = {field.name: getattr(self, field.name)
                  for field in dataclasses.fields(self) if field.name != "extra"}
        # Fields that the original does not know are written only if they are set.
        for field in dataclasses.fields(self):
            if field.name in _NOT_RELEASED and values[field.name] == field.default:
                del values[field.name]
        return {**values, **self.extra}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def group_of_layer(self, layer: int) -> int:
        """Returns the group of a layer: int(l / L * G) in floating point, as the
        original computes it, or the formula that `layer_grouping` names.

        For a few settings, such as 49 layers in 49 groups, rounding gives a different
        group than l * G // L, so that some groups have no layer. The same happens with
        more groups than layers.
        """
        return GROUPINGS[self.layer_grouping](
            layer, self.num_hidden_layers, self.num_hidden_groups)

    @property
    def projects_embeddings(self) -> bool:
        """True if a dense layer projects the embeddings from width E to H."""
        return self.project_embeddings or self.embedding_size != self.hidden_size

    def attention_index(self, layer: int) -> int:
        """Returns the index of the attention parameters that a layer uses: its group if
        they are shared, else the layer itself."""
        shared = self.parameter_sharing in ("all", "attention")
        return self.group_of_layer(layer) if shared else layer

    def ffn_index(self, layer: int) -> int:
        """Returns the index of the feed-forward parameters of a layer, likewise."""
        shared = self.parameter_sharing in ("all", "ffn")
        return self.group_of_layer(layer) if shared else layer


def shown(value: Any) -> str:
    """Returns a value as text for a message, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_type(field: dataclasses.Field, value: Any) -> None:
    """Raises InputError if a value is not of its field's type."""
    accepted: dict[Any, Any] = {int: int, float: (int, float), str: str, bool: bool}
    types = accepted.get(field.type, Mapping)
    # In Python True is an int, too: it is accepted only where a bool is expected.
    if not isinstance(value, types) or (
            isinstance(value, bool) and field.type is not bool):
        raise InputError(
            f"config: {field.name} is {shown(value)}; it must be of type "
            f"{getattr(field.type, '__name__', 'dict')}.")


def _boolean(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


_NOT_RELEASED = ("parameter_sharing", "layer_norm_eps", "masked_lm_layer_norm_eps",
                 "use_pooler", "project_embeddings", "layer_grouping")

# Fields that change a model's outputs, but not the shapes of its variables: tensors
# alone do not reveal them.
COMPUTING = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps",
             "masked_lm_layer_norm_eps", "layer_grouping")


def _size(layers, hidden, heads, dropout=0.0, **fields):
    """Returns the fields of a size, whose feed-forward network is 4 times as wide."""
    return dict(num_hidden_layers=layers, hidden_size=hidden,
                num_attention_heads=heads, intermediate_size=4 * hidden,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout, **fields)


def _bert(layers, hidden, heads):
    """Returns the fields of a BERT, to which the paper compares ALBERT (Table 1):
    nothing is shared, and E = H."""
    return _size(layers, hidden, heads, dropout=0.1, embedding_size=hidden,
                 parameter_sharing="none")


_CHINESE = dict(vocab_size=21128)
# The sizes of Table 1 of the paper. Numbers of heads and dropout rates are those of the
# released files: the paper says H / 64 heads, but the released xlarge has 16.
NAMED: dict[str, dict[str, Any]] = {
    "base": _size(12, 768, 12, dropout=0.1),
    "large": _size(24, 1024, 16, dropout=0.1),
    "xlarge": _size(24, 2048, 16, dropout=0.1),
    "xxlarge": _size(12, 4096, 64),
    "base-v2": _size(12, 768, 12),
    "large-v2": _size(24, 1024, 16),
    "xlarge-v2": _size(24, 2048, 16),
    "xxlarge-v2": _size(12, 4096, 64),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "bert-xlarge": _bert(24, 2048, 16),
    # Small models, for a single language; the shapes of albert_zh.
    "tiny": _size(4, 312, 12),
    "small": _size(6, 384, 12),
    # Two of albert_zh's models, those with the original's layout of variables.
    "albert-tiny-zh": _size(4, 312, 12, **_CHINESE),
    "albert-small-zh": _size(6, 384, 12, **_CHINESE),
}
