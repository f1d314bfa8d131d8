"""The release's records, bit for bit: --reproduce_release."""

import hashlib
import random

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking.reference import RandomSource
from albert_tf.pretraining_data import release
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import RecordWriter, read_records
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.pretraining_data.data_creation import (
    RUNS, SPM_MODEL, WORDPIECE, golden_options, options_of, written)


def _content_sha256(options):
    spec = pretraining_spec(options.instances.max_seq_length,
                            options.instances.masking.num_prediction_slots)
    digest = hashlib.sha256()
    for path in options.output_files:
        for record in read_records(path):
            for name, values in sorted(spec.parse_numpy(record).items()):
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


def test_shares_with_other_random_numbers(tmp_path):
    run = RUNS["default"]
    options = golden_options(run, tmp_path, 10)
    summary = release.create(
        options, FullTokenizer(spm_model_file=SPM_MODEL), RandomSource.from_seed(7))
    shares = run["dupe10"]["shares"]
    near = dict(abs=0.015)
    count = summary["instances"]
    assert summary["label_1_share"] == pytest.approx(shares["label1"], **near)
    assert summary["second_segment"]["random_document"] / count == pytest.approx(
        shares["random_document"], **near)
    # The golden file names the shares of [MASK], the same piece, another.
    assert sorted(summary["shown_instead"].values()) == pytest.approx(
        sorted(shares["mask80"]), **near)
    assert summary["ngram_words"] == pytest.approx(shares["span_words"], **near)
    assert summary["predicted_pieces"] / count == pytest.approx(
        shares["mean_masked"], rel=0.015)
    assert summary["length"]["mean"] == pytest.approx(shares["mean_len"], rel=0.015)


def test_documents_end_at_blank_lines_only(tmp_path, tokenizer):
    runs_on = written(tmp_path, "One here.\n\nTwo here.\nThree.", "a")
    ends = written(tmp_path, "One here.\r\n \t\r\nTwo here.\r\n\r\n\r\n", "b")
    after = written(tmp_path, "\ufeffFour goes.\nFive goes.\n", "c")
    for made_by, paths, sizes in (
            (tokenizer, (runs_on, after), [1, 4]),
            (tokenizer, (ends, after), [1, 1, 2]),
            (FullTokenizer(vocab_file=WORDPIECE), (ends, after), [1, 1, 2])):
        documents, _ = release.read_documents(paths, made_by)
        assert [len(document) for document in documents] == sizes


def test_sentences_over_several_batches(tmp_path, tokenizer):
    path = written(tmp_path)
    whole, counts = release.read_documents([path], tokenizer)
    cut, cut_counts = release.read_documents([path], tokenizer, block_bytes=20)
    assert whole == cut and vars(counts) == vars(cut_counts)
    assert counts.pieces == sum(len(s) for d in whole for s in d)


def test_a_failure_while_writing_leaves_all_files_as_they_were(
        tmp_path, tokenizer, monkeypatch):
    options = options_of(tmp_path, outputs=("a.tfrecord", "b.tfrecord"))
    release.create(options, tokenizer)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    write = RecordWriter.write

    written = []

    def fails_late(self, data):
        written.append(data)
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", fails_late)
    with pytest.raises(InputError, match="No space left"):
        release.create(
            options_of(tmp_path, outputs=("a.tfrecord", "b.tfrecord"), random_seed=5),
            tokenizer)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
