"""The options of vectors of texts: how token vectors are pooled, and from which
layers."""

import dataclasses
from typing import Any, Mapping

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.sentence_transformers import POOLED, POOLING
from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

Row = Mapping[str, Any]  # the vectors of a text, by name
PIECES, EMBEDDING = "pieces", "embedding"
WINDOWS = (
    "Read texts that are too long in overlapping windows, and average the windows' "
    "logits or vectors; by default they are cut, as in training.")
TRUNCATED = "Add `truncated` to each answer: true if a text of it was cut."


@dataclasses.dataclass(frozen=True)
class Options:
    """The vectors to compute: flags of extract_features.py."""

    pooling: list[str] = option(
        (), "Comma-separated kinds of vectors: pooled (the model's pooler), cls (the "
        "first token), mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken (over "
        "the tokens), pieces (a vector for each token), embedding (as defined by a "
        "folder of sentence-transformers). Default: embedding if it is defined, else "
        "pooled,mean.")
    layers: list[Any] = option(
        ("-1",), "Comma-separated numbers of the layers to use: 1 is the first, -1 the "
        "last, 0 the input of the first. With several layers the vectors have an "
        "additional axis.")
    max_seq_length: int = option(
        0, "Maximum number of tokens in a text, with [CLS] and [SEP]; 0: as in "
        "training.")
    batch_size: int = option(
        32, "Maximum number of sequences that are computed together.", least=1)
    windows: bool = option(False, WINDOWS)
    truncated: bool = option(False, TRUNCATED)

    def of(self, checkpoint: Checkpoint) -> "Options":
        """Returns the options for a model, with defaults filled in. Raises InputError
        if the model does not support them."""
        config, sentence = checkpoint.config, checkpoint.sentence
        if checkpoint.tokenizer is None:
            raise InputError(f"--model={checkpoint.source}: its folder holds no "
                             "vocabulary; give --spm_model_file or --vocab_file.")
        pooled = [POOLED] * config.use_pooler
        kinds = [*POOLING, *pooled, *[EMBEDDING] * bool(sentence),
                 *[PIECES] * (not self.windows)]
        pooling = tuple(dict.fromkeys(map(str.strip, self.pooling))) or (
            (EMBEDDING,) if sentence else (*pooled, "mean"))
        most, longest = config.num_hidden_layers, config.max_position_embeddings
        layers = {str(layer): layer % (most + 1) for layer in range(-most, most + 1)}
        length = self.max_seq_length or min(
            checkpoint.flags.get("max_seq_length", 512), longest)
        least = NUM_SPECIAL_PAIR + 1
        for flag, values, known, shown in (
                ("pooling", pooling, kinds,
                 ", ".join(kinds) + " with --windows" * self.windows),
                ("layers", map(str, self.layers), layers,
                 f"0 to {most}, and -1, the last, to -{most}"),
                ("max_seq_length", [length], range(least, longest + 1),
                 f"{least} to {longest}")):
            for value in values:
                if value not in known:
                    raise InputError(f"--{flag}={value}: this model has {shown}.")
        return dataclasses.replace(
            self, pooling=pooling, max_seq_length=length,
            layers=tuple(layers[str(layer)] for layer in self.layers or (-1,)))
