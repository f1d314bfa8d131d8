"""Answers of the pretraining heads: masked tokens, and the order of two passages."""

import numpy as np

from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answer, Answering, Request, chosen
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.tokenization import sequences

MASK = "[MASK]"


class Order(Answering):
    """Says whether two passages are in their original order."""

    optional = ()

    def answer(self, outputs):
        return chosen(outputs["probabilities"], ORDER_LABELS)


class Masks(Answering):
    """Gives the most likely tokens for each [MASK] of a text."""

    def request(self, given, top_k):
        first, second = (None if given.get(name) is None else self._ids(given[name])
                         for name in self.names)
        masks = sum((part or []).count(self.tokenizer.mask_id)
                    for part in (first, second))
        if not masks:
            raise InputError(f"the text has no {MASK} to fill; add one.")
        special = (sequences.NUM_SPECIAL_PAIR if second
                   else sequences.NUM_SPECIAL_SINGLE)
        length = len(first) + len(second or [])
        first, second = sequences.truncate_longer_first(
            first, second or [], self.max_length - special)
        cut = length - len(first) - len(second)
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
