"""Records of the default way against the release's: every statistic, two samples.

The release's records are one draw. Its instances are not independent of each other
(a document's copies are alike), so that tables of chi-square do not apply; how far
apart two draws may be is seen in a dozen draws of ours: the release's must not lie
farther from them than they lie from each other.
"""

import collections
import json

import numpy as np
import pytest

from albert_tf.masking.batched import mask_batch
from albert_tf.masking.options import SpecialIds
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.options import ORIGINS
from albert_tf.pretraining_data.local import slices
from albert_tf.pretraining_data.plans import plan_chunks
from albert_tf.pretraining_data.spans import plan_spans
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.tokenization.sequences import assemble_batch
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import SHARED
from tests.pretraining_data.data_creation import SPM_MODEL, WORDPIECE, golden_options

pytestmark = pytest.mark.shared
SETS = ("default", "do_permutation", "random_next_sentence", "wordpiece") + tuple(
    pytest.param(name, marks=pytest.mark.slow) for name in (
        "favor_longer", "masked_lm_prob0", "ngram1", "no_whole_word", "short_seq_half",
        "two_files_cased_64"))
DRAWS = 12


class Maker:
    """Statistics of ten copies of the golden text, by their seed."""

    def __init__(self, name, tmp_path):
        golden = SHARED / "golden" / "pretraining_data" / name
        run = json.loads((golden / "stats_dupe10.json").read_text())
        given = run["flags"]
        self.golden = run["stats"]
        # How often a target is short shows in the lengths.
        self.golden_totals = {**run["totals"], "random_document": self.golden.pop(
            "branch")["random_document"]}
        inputs = len(given["input_file"].split(","))
        options = golden_options(
            {"flags": {**given, "inputs": inputs, "outputs": 1}}, tmp_path, 10)
        self.options = options.instances
        self.tokenizer = FullTokenizer(
            vocab_file=WORDPIECE, do_lower_case=given.get("do_lower_case", True),
            spm_model_file=given["spm_model_file"] and SPM_MODEL)
        self.encoder = PieceEncoder(self.tokenizer)
        self.slices = [
            documents for span in plan_spans(options.input_files)
            for documents in slices(options.input_files, span, self.encoder,
                                    InstanceCounts(), 1 << 20)]

    def draw(self, seed):
        stats = collections.defaultdict(collections.Counter)
        found = [(plans, documents.codes) for documents in self.slices
                 for plans in plan_chunks(documents, range(10), self.options, seed,
                                          InstanceCounts())]
        plans = np.concatenate([plans for plans, _ in found])
        codes_a, codes_b = (np.concatenate([
            codes[start:start + length] for plans, codes in found
            for start, length in zip(
                plans[f"start_{x}"].tolist(), plans[f"length_{x}"].tolist())])
            for x in "ab")
        stats["random_document"][1] = int(
            (plans["origin"] == ORIGINS.index("random_document")).sum())
        ids = SpecialIds(
            self.tokenizer.cls_id, self.tokenizer.sep_id, self.tokenizer.mask_id)
        sequences = assemble_batch(
            plans, codes_a, codes_b,
            self.options.max_seq_length, ids.cls, ids.sep, self.tokenizer.pad_id)
        masked = mask_batch(
            sequences.input_ids, sequences.starts_word, sequences.lengths,
            plans["mask"], self.options.masking, ids, self.tokenizer.vocab_size)
        stats["seq_len"].update(sequences.lengths.tolist())
        stats["len_a"].update(plans["length_a"].tolist())
        stats["len_b"].update(plans["length_b"].tolist())
        stats["next_sentence_label"].update(plans["label"].tolist())
        stats["masked_count"].update(masked.num_masked.tolist())
        stats["replacement"].update(dict(zip(
            ("mask", "same", "other"), masked.shown.tolist())))
        stats["span_words"].update({
            size: n for size, n in enumerate(masked.ngram_words.tolist()) if n})
        slots = np.arange(masked.masked_lm_positions.shape[1])
        apart = np.arange(len(plans))[:, None] * (self.options.max_seq_length + 1)
        masked_at = (masked.masked_lm_positions + apart)[
            slots < masked.num_masked[:, None]]
        ends = np.flatnonzero(np.append(np.diff(masked_at) != 1, len(masked_at) > 0))
        stats["contiguous_run_pieces"].update(np.diff(ends, prepend=-1).tolist())
        wanted = self.options.masking.num_to_predict(sequences.lengths)
        stats["shortfall_to_num_to_predict"].update(
            (wanted - masked.num_masked).tolist())
        stats["boundary"][1] = int(masked.token_boundary.sum())
        return stats


def _shares(counter, keys):
    counts = np.array([counter.get(key, 0) for key in keys], float)
    return counts / max(counts.sum(), 1)


def _farther(golden, draws):
    """Statistics in which the golden draw lies farther off than ours from each other.

    Distances are those of Kolmogorov and Smirnov between one draw and all others.
    """
    found = []
    for name in golden:
        keys = sorted({*golden[name], *(key for draw in draws for key in draw[name])},
                      key=lambda key: (isinstance(key, str), key))
        def distance(draw, others):
            pooled = sum((collections.Counter(o[name]) for o in others),
                         collections.Counter())
            return np.abs(np.cumsum(_shares(draw[name], keys)
                                    - _shares(pooled, keys))).max(initial=0)
        own = [distance(draw, [d for d in draws if d is not draw]) for draw in draws]
        theirs = distance(golden, draws)
        if theirs > 1.5 * max(own) + 1e-3:
            found.append((name, theirs, max(own)))
    return found


def _golden(stats):
    known = {name: {int(key) if key.lstrip("-").isdecimal() else key: n
                    for key, n in counts.items()} for name, counts in stats.items()}
    # How many pieces an n-gram has is seen in tests/masking alone.
    known.pop("span_pieces", None)
    return known


@pytest.mark.parametrize("name", SETS)
def test_statistics_are_the_release_s(name, tmp_path):
    maker = Maker(name, tmp_path)
    draws = [maker.draw(seed) for seed in range(DRAWS)]
    golden = _golden(maker.golden)
    if name == "do_permutation":  # permuted pieces are among the masked ones here
        for other in ("shortfall_to_num_to_predict", "permuted"):
            golden.pop(other, None)
    assert set(golden) <= set(draws[0])
    assert not _farther(golden, draws)
    for total, ours in (
            ("instances", lambda d: sum(d["seq_len"].values())),
            ("tokens", lambda d: sum(n * c for n, c in d["seq_len"].items())),
            ("boundary", lambda d: d["boundary"][1]),
            ("random_document", lambda d: d["random_document"][1]),
            ("predictions",
             lambda d: sum(n * c for n, c in d["masked_count"].items()))):
        values = [ours(draw) for draw in draws]
        spread = max(4 * np.std(values, ddof=1), 1e-9)
        assert abs(maker.golden_totals[total] - np.mean(values)) <= spread, total
