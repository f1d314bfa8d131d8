"""The shape of a model: `AlbertConfig`, its JSON file, the published sizes."""

import dataclasses
import importlib
import json
from typing import Any, Mapping

from albert_tf import text_files
from albert_tf.errors import InputError

ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# Sizes are indices of 32 bits; every layer is built, so that more take hours.
_LARGEST_SIZE = 2**31 - 1
_MOST = dict(num_hidden_layers=1000, num_hidden_groups=1000, inner_group_num=1000)
_LARGEST_DEVIATION = 10.0
_LARGEST_EPSILON = 1.0

_HUGGINGFACE = "albert_tf.checkpoints.huggingface"

# Types of the layers' matrix products and activations; variables are float32.
DTYPES = ("float32", "bfloat16", "float16")

# The name of a config beside checkpoints.
CONFIG_FILE = "albert_config.json"

# What the layers share ("Cross-layer parameter sharing", section 3.1 and Table
# 4 of the paper): everything, the attention sub-layers alone, the feed-forward
# sub-layers alone, or nothing.
SHARING = ("all", "attention", "ffn", "none")

# How the group of a layer l of L in G groups is computed: by name, the formula. They
# differ only by rounding, and for few L and G (22 layers in 22 groups).
GROUPINGS = {
    "release": lambda l, L, G: int(l / L * G),
    "huggingface": lambda l, L, G: int(l / (L / G)),
    "even": lambda l, L, G: l * G // L,
}


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """Hyper-parameters of an ALBERT encoder, as in the released JSON files.

        AlbertConfig.named("base", vocab_size=21128)
        AlbertConfig.from_json_file("albert_config.json")

    The defaults are those of the release's `modeling.AlbertConfig`. E is much smaller
    than H (section 3.1 of the paper): embeddings learn what a piece means by itself,
    layers what it means in its context, and V x E + E x H parameters replace V x H.
    BERT is the case `embedding_size == hidden_size`, `parameter_sharing == "none"`.
    """

    vocab_size: int = 30000  # V
    embedding_size: int = 128  # E
    hidden_size: int = 4096  # H
    num_hidden_layers: int = 12  # L
    num_hidden_groups: int = 1  # G; layers of one group share their parameters
    num_attention_heads: int = 64  # in a layer; divides H
    intermediate_size: int = 16384  # width of the feed-forward sub-layer
    inner_group_num: int = 1  # blocks inside each layer
    down_scale_factor: int = 1  # in the released files; unused, there and here
    # Activation of the feed-forward sub-layer and of the masked-LM transform, one of
    # ACTIVATIONS; gelu is its tanh form, Hugging Face's "gelu_new", and gelu_erf the
    # exact one, Hugging Face's "gelu".
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0  # of embeddings and sub-layer outputs
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512  # longest sequence
    type_vocab_size: int = 2  # number of segment ids
    initializer_range: float = 0.02  # standard deviation of the initial weights
    # From here on: not in the released files, and written only where they differ.
    parameter_sharing: str = "all"  # one of SHARING
    # What models of other libraries have, so that each can be computed as it was made.
    layer_norm_eps: float = 1e-12
    masked_lm_layer_norm_eps: float = 0.0  # of the masked-LM head; 0: as the others
    use_pooler: bool = True
    project_embeddings: bool = False  # a projection even where E = H
    layer_grouping: str = "release"  # one of GROUPINGS
    # Keys of the JSON file that mean nothing here; kept and written back.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _check_type(field, value)
            most = _MOST.get(field.name, _LARGEST_SIZE)
            if field.type is int and field.name != "down_scale_factor" and not (
                    1 <= value <= most):
                raise InputError(
                    f"config: {field.name} is {shown(value)}; it must be from 1 to "
                    f"{most}.")
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
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"config: hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}.")
        for name, known in (("hidden_act", ACTIVATIONS),
                            ("parameter_sharing", SHARING),
                            ("layer_grouping", tuple(GROUPINGS))):
            if getattr(self, name) not in known:
                raise InputError(
                    f"config: {name} is '{getattr(self, name)}'; it must be one of "
                    f"{', '.join(known)}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AlbertConfig":
        """A config from the keys of a JSON file; unknown keys go to `extra`.

        Hugging Face's config.json (told by `model_type` or `architectures`) is read as
        it is meant there: its "gelu" is `gelu_erf` here, for example.
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        values = dict(values)
        if "model_type" in values or "architectures" in values:
            # Another library's file: the module of its format knows what it means.
            values = importlib.import_module(_HUGGINGFACE).config_values(values)
        elif values.get("hidden_act") == "gelu_new":
            values["hidden_act"] = "gelu"
        # The release writes null for the linear activation.
        if values.get("hidden_act", "") is None:
            values["hidden_act"] = "linear"
        extra = {k: v for k, v in values.items() if k not in known}
        return cls(**{k: v for k, v in values.items() if k in known},
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
        """A published size, one of NAMED ("base", "xxlarge-v2", "bert-base"), with some
        values changed, such as vocab_size=21128."""
        if name not in NAMED:
            raise InputError(
                f"no model is named '{name}'; known: {', '.join(NAMED)}.")
        return cls(**NAMED[name]).replace(**changes)

    def simplified(self) -> "AlbertConfig":
        """The same model without fields that make no difference to it."""
        changes = {}
        if self.embedding_size != self.hidden_size:
            changes["project_embeddings"] = False
        if self.masked_lm_layer_norm_eps == self.layer_norm_eps:
            changes["masked_lm_layer_norm_eps"] = 0.0
        if self.layer_grouping != "release":
            plain = dataclasses.replace(self, layer_grouping="release")
            if all(plain.group_of_layer(layer) == self.group_of_layer(layer)
                   for layer in range(self.num_hidden_layers)):
                changes["layer_grouping"] = "release"
        return dataclasses.replace(self, **changes) if changes else self

    def replace(self, **changes) -> "AlbertConfig":
        """A copy with some fields changed; strings are read as the field's type."""
        types = {field.name: field.type for field in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in types or name == "extra":
                raise InputError(
                    f"config: no field is named '{name}'; the fields are "
                    f"{', '.join(n for n in types if n != 'extra')}.")
            if isinstance(value, str) and types[name] is not str:
                read = _truth if types[name] is bool else types[name]
                try:
                    changes[name] = read(value)
                except (KeyError, ValueError) as error:
                    wanted = ("true or false" if types[name] is bool
                              else f"a number ({types[name].__name__})")
                    raise InputError(f"config: {name} is {shown(value)}; it must be "
                                     f"{wanted}.") from error
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the JSON file; those that the release lacks where they matter."""
        values = {field.name: getattr(self, field.name)
                  for field in dataclasses.fields(self) if field.name != "extra"}
        for field in dataclasses.fields(self):
            if field.name in _NOT_RELEASED and values[field.name] == field.default:
                del values[field.name]
        return {**values, **self.extra}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def group_of_layer(self, layer: int) -> int:
        """Group of a layer: int(l / L * G), in floats as the release computes it, or
        as `layer_grouping` says.

        For a few settings, such as 49 layers in 49 groups, rounding gives another group
        than l * G // L, and some groups have no layer; likewise with more groups than
        layers.
        """
        return GROUPINGS[self.layer_grouping](
            layer, self.num_hidden_layers, self.num_hidden_groups)

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer leads from E to H."""
        return self.project_embeddings or self.embedding_size != self.hidden_size

    def attention_index(self, layer: int) -> int:
        """Index of the attention parameters that a layer uses."""
        shared = self.parameter_sharing in ("all", "attention")
        return self.group_of_layer(layer) if shared else layer

    def ffn_index(self, layer: int) -> int:
        """Index of the feed-forward parameters that a layer uses."""
        shared = self.parameter_sharing in ("all", "ffn")
        return self.group_of_layer(layer) if shared else layer


def shown(value: Any) -> str:
    """A value in a message, where it may be endless."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_type(field: dataclasses.Field, value: Any) -> None:
    accepted = {int: int, float: (int, float), str: str, bool: bool}.get(
        field.type, Mapping)
    if not isinstance(value, accepted) or (
            isinstance(value, bool) and field.type is not bool):
        raise InputError(
            f"config: {field.name} is {shown(value)}; it must be of type "
            f"{getattr(field.type, '__name__', 'dict')}.")


def _truth(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


_NOT_RELEASED = ("parameter_sharing", "layer_norm_eps", "masked_lm_layer_norm_eps",
                 "use_pooler", "project_embeddings", "layer_grouping")

# Fields that shapes do not tell, and outputs depend on.
COMPUTING = ("num_hidden_layers", "num_attention_heads", "hidden_act",
             *_NOT_RELEASED[1:3], "layer_grouping")

def _size(layers, hidden, heads, dropout=0.0, **more):
    return dict(num_hidden_layers=layers, hidden_size=hidden,
                num_attention_heads=heads, intermediate_size=4 * hidden,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout, **more)


def _bert(layers, hidden, heads):
    """BERT as the paper compares with it: nothing shared, E = H (Table 1)."""
    return _size(layers, hidden, heads, dropout=0.1, embedding_size=hidden,
                 parameter_sharing="none")


# Table 1 of the paper, with the heads and dropout rates of the released files
# (the paper says H / 64 heads; the released xlarge has 16).
_CHINESE = dict(vocab_size=21128)
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
    # Of one language or a student's (training.distillation); shapes of albert_zh.
    "tiny": _size(4, 312, 12),
    "small": _size(6, 384, 12),
    # Of albert_zh, in the release's layout.
    "albert-tiny-zh": _size(4, 312, 12, **_CHINESE),
    "albert-small-zh": _size(6, 384, 12, **_CHINESE),
}
