"""The release's records, bit for bit: --reproduce_release."""

import hashlib
import random

import numpy as np
import pytest

from albert_tf.masking.reference import RandomSource
from albert_tf.pretraining_data import release
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.pretraining_data.data_creation import (
    RUNS, SPM_MODEL, WORDPIECE, golden_options, records_of)


def _content_sha256(options):
    digest = hashlib.sha256()
    for record in records_of(options):
        for name, values in sorted(record.items()):
            digest.update(name.encode())
            digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _run_golden(run, tmp_path, dupe_factor):
    options = golden_options(run, tmp_path, dupe_factor)
    made_by = FullTokenizer(
        vocab_file=WORDPIECE, do_lower_case=run["flags"].get("do_lower_case", True),
        spm_model_file=SPM_MODEL if run["flags"]["spm_model_file"] else None)
    source = RandomSource(random.Random(run["python_seed"]),
                          np.random.RandomState(run["np_seed"]))
    summary = release.create(options, made_by, source)
    return options, summary


@pytest.mark.parametrize("name", RUNS)
def test_records_of_the_release(name, tmp_path):
    run = RUNS[name]
    options, summary = _run_golden(run, tmp_path, run["flags"]["dupe_factor"])
    assert _content_sha256(options) == run["content_sha256"]
    assert summary["instances"] == run["totals"]["instances"]
    assert summary["predicted_pieces"] == run["totals"]["predictions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RUNS if "dupe10" in RUNS[n]])
def test_records_of_the_release_at_dupe_factor_10(name, tmp_path):
    options, _ = _run_golden(RUNS[name], tmp_path, 10)
    assert _content_sha256(options) == RUNS[name]["dupe10"]["content_sha256"]
