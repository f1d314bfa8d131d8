"""Answers of the pretraining heads: masked tokens, and the order of two passages."""

import numpy as np
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answer, Answering, Request, chosen
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.text.inputs import Field
from albert_tf.tokenization import sequences

MASK = "[MASK]"
_SCORES = 2**26  # scores that are held at a time


class Order(Answering):
    """Says whether two passages are in their original order."""

    fields = (Field("text"), Field("text_pair"))

    def exchanged(self, features):
        return {"logits": self.head_outputs(features)["sentence_order_logits"]}

    def of_exchanged(self, exchanged, batch):
        return self.head.predictions({"sentence_order_logits": exchanged["logits"]})

    def answer(self, outputs):
        return chosen(outputs["probabilities"], ORDER_LABELS)


class Masks(Answering):
    """Gives the most likely tokens for each [MASK] of a text."""

    def exchanged(self, features):
        """Computes `logits` [B, S, V], of all positions."""
        positions = tf.range(tf.shape(features["input_ids"])[1])[tf.newaxis]
        return {"logits": self.head_outputs({
            **features, self.head.positions: tf.broadcast_to(
                positions, tf.shape(features["input_ids"]))})["mlm_logits"]}

    def of_exchanged(self, exchanged, batch):
        # Graphs of others may score rows that pad the embeddings, too.
        logits = exchanged["logits"][..., :self.tokenizer.vocab_size]
        return self.head.predictions({"mlm_logits": np.take_along_axis(
            logits, batch[self.head.positions][..., np.newaxis], axis=1)})

    def compute(self, batch):
        if not (self._engine and self._engine.exchanges):
            return super().compute(batch)
        # Such a graph scores all positions, which takes much memory for many rows.
        rows, length = batch["input_ids"].shape
        most = max(1, _SCORES // (length * self.config.vocab_size))
        parts = [super(Masks, self).compute({
            name: value[start:start + most] for name, value in batch.items()})
                 for start in range(0, rows, most)]
        return {name: np.concatenate([part[name] for part in parts])
                for name in parts[0]}

    def request(self, given, top_k):
        first, second = (None if given.get(name) is None else self._ids(given[name])
                         for name in self.names)
        masks = sum((part or []).count(self.tokenizer.mask_id)
                    for part in (first, second))
        if not masks:
            raise InputError(f"the text has no {MASK} to fill; add one.")
        [(first, second)], cut = sequences.fitted(first, second or [], self.max_length)
        ids, segments = sequences.assemble(
            first, second or None, self.tokenizer.cls_id, self.tokenizer.sep_id)
        positions = [i for i, token in enumerate(ids)
                     if token == self.tokenizer.mask_id]
        if len(positions) < masks:
            raise InputError(f"a {MASK} is after the {self.max_length} tokens that the "
                             "model reads; give a shorter text.")
        row = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": segments,
               "masked_lm_positions": positions}
        return Request([row], lambda outputs: {"masks": [
            self._likeliest(scores, top_k) for scores in
            outputs[0]["probabilities"][:len(positions)]]}, self, cut)

    def _ids(self, text: str) -> list[int]:
        """Returns the ids of a text with masks. Text that follows a mask without a
        space continues its word."""
        tokenizer, ids = self.tokenizer, []
        for number, part in enumerate(text.split(MASK)):
            pieces = tokenizer.tokenize(tokenizer.prepare(part))
            if number:
                ids.append(tokenizer.mask_id)
                if pieces and not part[:1].isspace() and (
                        bare := pieces[0].removeprefix("▁")) != pieces[0]:
                    pieces[:1] = [bare] if bare in tokenizer.vocab else (
                        pieces[:1] if bare else [])
            ids += tokenizer.convert_tokens_to_ids(pieces)
        return ids

    def _likeliest(self, scores: np.ndarray, top_k: int) -> list[Answer]:
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [{"piece": piece, "probability": float(scores[i])} for i, piece in zip(
            best, self.tokenizer.convert_ids_to_tokens(best))]
