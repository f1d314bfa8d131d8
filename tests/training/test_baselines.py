"""What guessing scores, against a count by hand."""

import numpy as np
import pytest

from albert_tf import records
from albert_tf.errors import InputError
from albert_tf.training import baselines
from tests import tiny_run

SPEC = tiny_run.SPEC
CLS, SEP, MASK = 2, 3, tiny_run.MASK_ID


def write(path, rows):
    """Each row: the pieces as they were, {position: what is shown there}, label."""
    with records.RecordWriter(str(path)) as writer:
        for pieces, shown, label in rows:
            ids = np.zeros(tiny_run.LENGTH, np.int64)
            ids[:len(pieces)] = pieces
            mask = (np.arange(tiny_run.LENGTH) < len(pieces)).astype(np.int64)
            positions, labels, weights = np.zeros((3, tiny_run.PREDICTIONS), np.int64)
            for place, (position, piece) in enumerate(shown.items()):
                positions[place], labels[place], weights[place] = (
                    position, ids[position], 1)
                ids[position] = piece
            writer.write(SPEC.serialize(dict(
                input_ids=ids, input_mask=mask, segment_ids=mask * 0,
                token_boundary=mask * 0, masked_lm_positions=positions,
                masked_lm_ids=labels, masked_lm_weights=weights.astype(np.float32),
                next_sentence_labels=[label])))
    return str(path)


@pytest.fixture(name="train")
def _train(tmp_path):
    """Followers: 10 → 11 (twice) or 12; 11 → [SEP] (twice) or 10; masked most: 10."""
    return write(tmp_path / "train", [
        ([CLS, 10, 11, SEP, 10, 12, SEP], {1: MASK, 5: MASK}, 0),
        ([CLS, 10, 11, 10, 11, SEP], {1: 10, 3: MASK, 2: 20}, 1)])


def test_against_a_count_by_hand(train, tmp_path):
    test = write(tmp_path / "test", [
        # 11 after 10: right. The 10 is shown: right for both.
        ([CLS, 10, 11, 10, SEP], {2: MASK, 3: 10}, 1),
        # After [MASK] and after 25, which was never seen: the most frequent, 10.
        ([CLS, 10, 11, 25, 10, SEP], {1: MASK, 2: MASK, 4: MASK}, 1),
        # A wrong piece is shown, 20; after it: the most frequent.
        ([CLS, 10, 12, SEP], {1: 20, 2: MASK}, 0)])
    guess = baselines.count_baselines([train], [test], SPEC, MASK)
    assert guess.predictions == 7 and guess.examples == 3
    # Labels: 11, 10 | 10, 11, 10 | 10, 12.
    # No, shown | yes, no, yes | wrong piece shown, no.
    assert guess.most_frequent_piece == pytest.approx(3 / 7)
    # 11 yes; 10 shown | 10 after [CLS] yes; 11 after [MASK] no; 10 after 25 yes |
    # wrong piece shown; 12 after 20 no.
    assert guess.most_frequent_follower == pytest.approx(4 / 7)
    assert guess.larger_class == pytest.approx(2 / 3)


def test_a_shown_token_is_repeated(train, tmp_path):
    test = write(tmp_path / "test", [([CLS, 11, 12, 25, SEP], {1: 11, 2: 12, 3: 25}, 0)])
    guess = baselines.count_baselines([train], [test], SPEC, MASK)
    assert (guess.most_frequent_piece, guess.most_frequent_follower) == (1.0, 1.0)


def test_pieces_that_are_never_masked_are_never_guessed(train, tmp_path):
    test = write(tmp_path / "test", [([CLS, 11, 10, SEP], {2: MASK}, 0)])
    guess = baselines.count_baselines([train], [test], SPEC, MASK)
    assert guess.most_frequent_follower == 1.0


def test_several_files(train, tmp_path):
    test = write(tmp_path / "test", [([CLS, 10, 11, SEP], {2: MASK}, 0)])
    guess = baselines.count_baselines([train, train], [test, test, test], SPEC, MASK)
    assert guess == baselines.Baselines(0.0, 1.0, 1.0, 3, 3)


def test_nothing_masked(tmp_path):
    path = write(tmp_path / "plain", [([CLS, 10, SEP], {}, 0)])
    with pytest.raises(InputError, match="plain: no record has a masked token"):
        baselines.count_baselines([path], [path], SPEC, MASK)


def test_records_of_another_length(train):
    spec = records.pretraining_spec(9, tiny_run.PREDICTIONS)
    with pytest.raises(InputError, match="train, record 1: .* max_seq_length says 9"):
        baselines.count_baselines([train], [train], spec, MASK)


@pytest.mark.parametrize("share, trials, low, high", [
    # Brown, Cai and DasGupta 2001 state the formula; these by hand with z = 1.96.
    (0.5, 100, 0.40383, 0.59617),
    (0.0, 10, 0.0, 0.27754),
    (1.0, 10, 0.72246, 1.0),
    (0.8, 2942, 0.78517, 0.81406)])
def test_wilson_interval(share, trials, low, high):
    found = baselines.wilson_interval(share, trials)
    assert found == pytest.approx((low, high), abs=2e-5)


def test_wilson_interval_holds_what_it_says():
    random = np.random.default_rng(0)
    hits = random.binomial(200, 0.3, 4000) / 200
    inside = np.mean([low <= 0.3 <= high for low, high in
                      (baselines.wilson_interval(share, 200) for share in hits)])
    assert 0.94 < inside < 0.96
