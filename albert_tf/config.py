"""Defines the shape of a model: `AlbertConfig`, its JSON file, the published sizes.

"The original" is Google's TF1 implementation of ALBERT. Values called "release" and
names like `_NOT_RELEASED` refer to it.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
from typing import Any, Iterable, Mapping

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.files import StrPath
from albert_tf.options import check, option, options_of

ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# Data types in which the layers can compute; variables are always float32.
DTYPES = ("float32", "bfloat16", "float16")

# Name of the config file in a checkpoint's folder.
CONFIG_FILE = "albert_config.json"

# Which parameters the layers share ("Cross-layer parameter sharing", section 3.1 and
# Table 4 of the paper): all, only those of attention, only those of the feed-forward
# network, or none.
SHARING = ("all", "attention", "ffn", "none")

# Sizes must fit into 32-bit indices; each layer, group and block is built.
_size = functools.partial(option, least=1)
_count = functools.partial(option, least=1, most=1000)


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """The hyperparameters of an ALBERT encoder, named as in the released JSON files.

        AlbertConfig.named("base", vocab_size=21128)
        AlbertConfig.from_json_file("albert_config.json")

    The defaults are those of the original's `modeling.AlbertConfig`, where vocab_size
    has none. E is much smaller than H (section 3.1 of the paper): an embedding holds
    what a token means by itself, a hidden state what it means in its context, which
    takes more numbers. V x E + E x H parameters therefore replace BERT's V x H. BERT is
    the case `embedding_size == hidden_size` with `parameter_sharing == "none"`.
    """

    vocab_size: int = _size(30000)  # V
    embedding_size: int = _size(128)  # E
    hidden_size: int = _size(4096)  # H
    num_hidden_layers: int = _count(12)  # L
    num_hidden_groups: int = _count(1)  # G; layers of one group share their parameters
    num_attention_heads: int = _size(64)  # in a layer; divides H
    intermediate_size: int = _size(16384)  # width of the feed-forward sub-layer
    inner_group_num: int = _count(1)  # pairs of blocks in each layer
    down_scale_factor: int = option(1)  # in the released files, but never used
    # Activation of the feed-forward sub-layer and of the masked-LM head, one of
    # ACTIVATIONS. "gelu" is the tanh approximation (Hugging Face's "gelu_new"),
    # "gelu_erf" the exact function (Hugging Face's "gelu").
    hidden_act: str = option("gelu", choices=ACTIVATIONS)
    hidden_dropout_prob: float = option(0.0, below=1)  # of embeddings and sub-layer outputs
    attention_probs_dropout_prob: float = option(0.0, below=1)
    max_position_embeddings: int = _size(512)  # longest sequence
    type_vocab_size: int = _size(2)  # number of segment ids
    # Standard deviation of the initial weights.
    initializer_range: float = option(0.02, least=1e-9, most=10)
    # The fields below are not in the released files. They are written to JSON only if
    # they differ from their defaults.
    parameter_sharing: str = option("all", choices=SHARING)  # one of SHARING
    # Details in which other libraries' models differ, so that ours give their outputs.
    layer_norm_eps: float = option(1e-12, most=1)
    masked_lm_layer_norm_eps: float = option(0.0, most=1)  # of that head; 0: layer_norm_eps
    use_pooler: bool = option(True)
    project_embeddings: bool = option(False)  # project the embeddings even if E = H
    # Unknown keys of the JSON file, stored so that they can be written back.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check(self, "config: ")
        # Each head takes an equal part of the hidden state, so H must divide evenly.
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"config: hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AlbertConfig":
        """Makes a config from the keys of a JSON file; unknown keys go to `extra`. A
        Hugging Face config.json is translated: its "gelu" becomes `gelu_erf`, say."""
        names = {each.field for each in options_of(cls)}
        entries = dict(values)
        if "model_type" in entries or "architectures" in entries:
            # Imported only now: the core does not depend on formats.
            entries = importlib.import_module(
                "albert_tf.checkpoints.huggingface").config_values(entries)
        # The original writes null for the linear activation.
        if entries.get("hidden_act", "") is None:
            entries["hidden_act"] = "linear"
        extra = {k: v for k, v in entries.items() if k not in names}
        # Keys of other projects that change the computation.
        refuse(extra, "config", layer_grouping=("release",), ln_type=("postln",),
               position_embedding_type=("absolute",))
        return cls(**{k: v for k, v in entries.items() if k in names}, extra=extra)

    @classmethod
    def from_json_file(cls, path: StrPath) -> "AlbertConfig":
        """Reads `albert_config.json`."""
        values = text_files.read_object(os.fspath(path))
        if "vocab_size" not in values:
            raise InputError(f"{path}: no vocab_size; is this an ALBERT config file?")
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def named(cls, name: str, **changes) -> "AlbertConfig":
        """Returns a published size, one of NAMED ("base", "xxlarge-v2", "bert-base"),
        with some fields changed, such as vocab_size=21128."""
        refuse({"name": name}, "config", "give one of these", name=NAMED)
        return cls(**NAMED[name]).replace(**changes)

    def replace(self, **changes) -> "AlbertConfig":
        """Returns a copy with some fields changed; strings are converted to the field's
        type."""
        types = {each.field: each.kind for each in options_of(type(self))}
        for name, value in changes.items():
            refuse({"field": name}, "config", "correct its name", field=types)
            # Command-line flags arrive as strings; those that cannot be converted are
            # refused as values of a wrong type.
            if isinstance(value, str) and types[name] is not str:
                with contextlib.suppress(KeyError, ValueError):
                    changes[name] = types[name](value) if types[name] is not bool else {
                        "true": True, "false": False, "1": True, "0": False}[value.lower()]
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys and values of the JSON file."""
        # Fields that the original does not know are written only if they are set.
        return {each.field: value for each in options_of(type(self))
                if (value := getattr(self, each.field)) != each.default
                or each.field not in _NOT_RELEASED} | dict(self.extra)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def group_of_layer(self, layer: int) -> int:
        """Returns the group of a layer: int(l / L * G) in floating point, as the
        original computes it.

        For a few settings, such as 49 layers in 49 groups, rounding gives a different
        group than l * G // L, so that some groups have no layer. The same happens with
        more groups than layers.
        """
        return int(layer / self.num_hidden_layers * self.num_hidden_groups)

    @property
    def projects_embeddings(self) -> bool:
        """True if a dense layer projects the embeddings from width E to H."""
        return self.project_embeddings or self.embedding_size != self.hidden_size

    def block_indices(self, kind: str) -> list[int]:
        """Returns the index of the block of a kind, "attention" or "ffn", that each layer
        uses: its group if the layers share this kind, else the layer itself."""
        shared = self.parameter_sharing in ("all", kind)
        return [self.group_of_layer(layer) if shared else layer
                for layer in range(self.num_hidden_layers)]


def refuse(values: Mapping[str, Any], where: str, advice: str = "give a different model",
           **allowed: Iterable[Any]) -> None:
    """Raises InputError for a value that is not among the allowed ones:
    refuse({"hidden_act": "swish"}, "config", hidden_act=("gelu", "relu"))."""
    for name, accepted in allowed.items():
        if name in values and values[name] not in (accepted := tuple(accepted)):
            raise InputError(
                f"{where}: {name}={values[name]!r:.60} is not supported, only "
                f"{', '.join(map(str, accepted)) or 'none'}; {advice}.")


_NOT_RELEASED = ("parameter_sharing", "layer_norm_eps", "masked_lm_layer_norm_eps",
                 "use_pooler", "project_embeddings")

# Fields that change a model's outputs, but not the shapes of its variables: tensors
# alone do not reveal them.
COMPUTING = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps",
             "masked_lm_layer_norm_eps")


def _shape(layers, hidden, heads, dropout=0.0, **fields):
    """Returns the fields of a size, whose feed-forward network is 4 times as wide."""
    return dict(num_hidden_layers=layers, hidden_size=hidden,
                num_attention_heads=heads, intermediate_size=4 * hidden,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout, **fields)


# The sizes of Table 1 of the paper. Numbers of heads and dropout rates are those of the
# released files: the paper says H / 64 heads, but the released xlarge has 16.
_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "xlarge": (24, 2048, 16)}
NAMED: dict[str, dict[str, Any]] = {
    **{name: _shape(*size, dropout=0.1) for name, size in _SIZES.items()},
    "xxlarge": _shape(12, 4096, 64),
    **{f"{name}-v2": _shape(*size) for name, size in _SIZES.items()},
    "xxlarge-v2": _shape(12, 4096, 64),
    # BERT, to which the paper compares ALBERT: nothing is shared, and E = H.
    **{f"bert-{name}": _shape(*size, 0.1, embedding_size=size[1],
                              parameter_sharing="none") for name, size in _SIZES.items()},
    # Small models, for a single language; the shapes of albert_zh, and two of its models,
    # those with the original's layout of variables.
    "tiny": _shape(4, 312, 12),
    "small": _shape(6, 384, 12),
    "albert-tiny-zh": _shape(4, 312, 12, vocab_size=21128),
    "albert-small-zh": _shape(6, 384, 12, vocab_size=21128),
}
