"""The whole way from text to records: the release's hashes, files, wrong inputs."""

import gzip
import hashlib
import json
import logging
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

from albert_tf import pretraining_data
from albert_tf.errors import InputError
from albert_tf.masking import MaskingOptions, RandomSource
from albert_tf.pretraining_data import DataOptions
from albert_tf.pretraining_instances import InstanceOptions
from albert_tf.records import RecordWriter, pretraining_spec, read_records
from albert_tf.tokenization import FullTokenizer
from tests.helpers import FIXTURES

ROOT = pathlib.Path(__file__).parent.parent
RUNS = json.loads((FIXTURES / "pretraining_data" / "runs.json").read_text())
CORPUS = gzip.decompress((FIXTURES / "pretraining_data" / "corpus.txt.gz").read_bytes())
SPM_MODEL = str(FIXTURES / "spm" / "en4k.model")
WORDPIECE = str(FIXTURES / "tokenization" / "wp_vocab.txt")
TEXT = ("The cat sat on the mat.\nIt saw a mouse there.\nThe mouse ran away.\n\n"
        "Rain fell in the night.\nThe river rose above its banks.\n\n"
        "A single sentence is a document too.\n")


@pytest.fixture(scope="module")
def tokenizer():
    return FullTokenizer(spm_model_file=SPM_MODEL)


def _written(tmp_path, text=TEXT, name="text.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def _options(tmp_path, text=TEXT, outputs=("out.tfrecord",), **options):
    instances = options.pop("instances", InstanceOptions(max_seq_length=24))
    return DataOptions(
        (_written(tmp_path, text),), tuple(str(tmp_path / o) for o in outputs),
        instances, **{"dupe_factor": 3, **options})


def _golden_options(run, tmp_path, dupe_factor):
    flags = dict(run["flags"])
    inputs = [CORPUS]
    if flags["inputs"] == 2:
        # No blank line at the end of the first: its last document runs on.
        inputs = [CORPUS[:97842], CORPUS[97843:]]
    names = ("masked_lm_prob", "ngram", "favor_shorter_ngram", "do_whole_word_mask",
             "do_permutation", "max_predictions_per_seq")
    masking = MaskingOptions(**{n: flags[n] for n in names if n in flags})
    names = ("max_seq_length", "short_seq_prob", "random_next_sentence")
    instances = InstanceOptions(
        **{n: flags[n] for n in names if n in flags}, masking=masking)
    return DataOptions(
        tuple(_written(tmp_path, text, f"part{i}") for i, text in enumerate(inputs)),
        tuple(str(tmp_path / f"out{i}") for i in range(flags["outputs"])),
        instances, dupe_factor)


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
    options = _golden_options(run, tmp_path, dupe_factor)
    made_by = FullTokenizer(
        vocab_file=WORDPIECE, do_lower_case=run["flags"].get("do_lower_case", True),
        spm_model_file=SPM_MODEL if run["flags"]["spm_model_file"] else None)
    source = RandomSource(random.Random(run["python_seed"]),
                          np.random.RandomState(run["np_seed"]))
    summary = pretraining_data.create(options, made_by, source)
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
    options = _golden_options(run, tmp_path, 10)
    summary = pretraining_data.create(
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


def _bytes_of(options):
    return [pathlib.Path(path).read_bytes() for path in options.output_files]


def test_the_seed_fixes_everything(tmp_path, tokenizer):
    made = []
    for seed in (1, 1, 2):
        options = _options(tmp_path, random_seed=seed)
        # A global generator of another state must not matter.
        np.random.seed(len(made))
        random.seed(len(made))
        pretraining_data.create(options, tokenizer)
        made.append(_bytes_of(options))
    assert made[0] == made[1] != made[2]


def test_outputs_are_filled_in_turn_with_a_summary_beside(tmp_path, tokenizer):
    options = _options(tmp_path, outputs=("data/a.tfrecord", "data/b.tfrecord"))
    summary = pretraining_data.create(options, tokenizer)
    counts = [sum(1 for _ in read_records(path)) for path in options.output_files]
    assert sum(counts) == summary["instances"] and 0 <= counts[0] - counts[1] <= 1
    assert sorted(os.listdir(tmp_path / "data")) == [
        "a.tfrecord", "b.tfrecord", "summary-a.tfrecord.json"]
    stored = json.loads((tmp_path / "data" / "summary-a.tfrecord.json").read_text())
    assert stored["text"]["documents"] == 3 and stored["text"]["sentences"] == 6
    assert stored["text"]["single_sentence_documents"] == 1
    assert stored["settings"]["random_seed"] == 12345
    assert {k: stored[k] for k in ("instances", "label_1_share", "padding_share")} == {
        k: summary[k] for k in ("instances", "label_1_share", "padding_share")}


def test_summary_counts_agree_with_the_records(tmp_path, tokenizer):
    options = _options(tmp_path, instances=InstanceOptions(
        max_seq_length=24, masking=MaskingOptions(max_predictions_per_seq=4)))
    summary = pretraining_data.create(options, tokenizer)
    rows = [pretraining_spec(24, 4).parse_numpy(record)
            for record in read_records(options.output_files[0])]
    lengths = [int(row["input_mask"].sum()) for row in rows]
    assert summary["instances"] == len(rows)
    assert summary["length"] == {
        "mean": pytest.approx(np.mean(lengths)), "min": min(lengths),
        "median": sorted(lengths)[(len(rows) - 1) // 2], "max": max(lengths)}
    assert summary["padding_share"] == pytest.approx(
        1 - np.mean(lengths) / 24, abs=1e-6)
    assert summary["predicted_pieces"] == sum(
        row["masked_lm_weights"].sum() for row in rows)
    assert summary["label_1_share"] == pytest.approx(
        np.mean([row["next_sentence_labels"][0] for row in rows]), abs=1e-6)


def test_skipped_sentences_are_counted(tmp_path, tokenizer):
    kept = InstanceOptions(max_seq_length=24, single_segment="skip", short_seq_prob=0)
    summary = pretraining_data.create(_options(tmp_path, instances=kept), tokenizer)
    assert summary["single_sentences_skipped"] >= 3
    assert "random_document" not in summary["second_segment"]


def _documents(tokenizer, *paths):
    documents, _ = pretraining_data.read_documents(paths, tokenizer)
    return [len(document) for document in documents]


def test_documents_end_at_blank_lines_only(tmp_path, tokenizer):
    runs_on = _written(tmp_path, "One here.\n\nTwo here.\nThree.", "a")
    ends = _written(tmp_path, "One here.\r\n \t\r\nTwo here.\r\n\r\n\r\n", "b")
    after = _written(tmp_path, "\ufeffFour goes.\nFive goes.\n", "c")
    assert _documents(tokenizer, runs_on, after) == [1, 4]
    assert _documents(tokenizer, ends, after) == [1, 1, 2]
    wordpiece = FullTokenizer(vocab_file=WORDPIECE)
    assert _documents(wordpiece, ends, after) == [1, 1, 2]


def test_sentences_over_several_batches(tmp_path, tokenizer, monkeypatch):
    path = _written(tmp_path)
    whole, counts = pretraining_data.read_documents([path], tokenizer)
    monkeypatch.setattr(pretraining_data, "_LINES_PER_BATCH", 2)
    cut, cut_counts = pretraining_data.read_documents([path], tokenizer)
    assert whole == cut and vars(counts) == vars(cut_counts)
    assert counts.pieces == sum(len(s) for d in whole for s in d)


def test_one_document_warns_and_works(tmp_path, tokenizer, caplog):
    text = TEXT.replace("\n\n", "\n")
    with caplog.at_level(logging.WARNING):
        summary = pretraining_data.create(_options(tmp_path, text), tokenizer)
    assert "one document" in caplog.text and "blank line" in caplog.text
    assert summary["instances"] > 0 and summary["text"]["documents"] == 1


def test_one_document_is_refused_for_random_next_sentence(tmp_path, tokenizer):
    options = _options(
        tmp_path, TEXT.replace("\n\n", "\n"),
        instances=InstanceOptions(max_seq_length=24, random_next_sentence=True))
    check_refused(options, tokenizer, "blank line between documents")


@pytest.mark.parametrize("text, more, warned", [
    ("文\n\n字\n\n語 a\n", {}, "vocabulary does not suit"),
    ("One.\n\nTwo.\n\nThree.\n", {}, "3 of 3 documents are one sentence"),
    (TEXT, {"instances": InstanceOptions(max_seq_length=256)}, "would take 38"),
])
def test_poor_data_warns(tmp_path, tokenizer, caplog, text, more, warned):
    with caplog.at_level(logging.WARNING):
        pretraining_data.create(_options(tmp_path, text, **more), tokenizer)
    assert warned in caplog.text


def test_progress_says_how_long_it_takes(tmp_path, tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(pretraining_data, "_SECONDS_BETWEEN_LINES", 0)
    with caplog.at_level(logging.INFO):
        pretraining_data.create(_options(tmp_path), tokenizer)
    size = len(TEXT)
    assert f"tokenizing: {size} of {size} bytes (100.0%), 0 s left" in caplog.text
    assert "instances: 1 of 9 documents (11.1%)" in caplog.text
    assert "documents/s, " in caplog.text and "instances so far" in caplog.text


def test_good_data_does_not_warn(tmp_path, tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        pretraining_data.create(_options(tmp_path), tokenizer)
    assert caplog.text == ""


def check_refused(options, tokenizer, message):
    """Asserts an InputError and that nothing was written."""
    before = sorted(path for path in pathlib.Path(
        options.input_files[0]).parent.rglob("*") if path.is_file())
    with pytest.raises(InputError, match=message):
        pretraining_data.create(options, tokenizer)
    after = sorted(path for path in pathlib.Path(
        options.input_files[0]).parent.rglob("*") if path.is_file())
    assert after == before


@pytest.mark.parametrize("text, more, message", [
    ("", {}, "text.txt: there is no sentence"),
    ("\n \n\n", {}, "there is no sentence"),
    (b"Good.\n\nBad \xff here.\n", {}, "text.txt, line 3: byte 5 is not UTF-8"),
    (TEXT, {"word_start": "sentencepiece", "wordpiece": True}, "--spm_model_file"),
    (TEXT, {"outputs": [f"out{i}" for i in range(500)]}, "too few for 500 output"),
    ("One.\n\nTwo.\n", {"instances": InstanceOptions(single_segment="skip")},
     "gives no instance"),
    (TEXT, {"outputs": ["text.txt"]}, "text.txt is an input file too"),
    (TEXT, {"outputs": ["."]}, "is a folder"),
    (TEXT, {"outputs": ["text.txt/out.tfrecord"]}, "--output_file: .* cannot be wr"),
])
def test_wrong_inputs(tmp_path, tokenizer, text, more, message):
    more = dict(more)
    used = FullTokenizer(vocab_file=WORDPIECE) if more.pop(
        "wordpiece", False) else tokenizer
    check_refused(_options(tmp_path, text, **more), used, message)


@pytest.mark.parametrize("more, message", [
    ({"dupe_factor": 0}, "--dupe_factor=0"),
    ({"word_start": "x"}, "--word_start=x"),
    ({"outputs": []}, "--output_file names no file"),
    ({"outputs": ["a", "a"]}, "names a file twice"),
])
def test_wrong_options(tmp_path, more, message):
    with pytest.raises(InputError, match=message):
        _options(tmp_path, **more)


def test_a_failure_while_writing_leaves_all_files_as_they_were(
        tmp_path, tokenizer, monkeypatch):
    options = _options(tmp_path, outputs=("a.tfrecord", "b.tfrecord"))
    pretraining_data.create(options, tokenizer)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    write = RecordWriter.write

    def fails_late(self, data):
        if self.num_records == 3:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", fails_late)
    with pytest.raises(InputError, match="No space left"):
        pretraining_data.create(
            _options(tmp_path, outputs=("a.tfrecord", "b.tfrecord"), random_seed=5),
            tokenizer)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def _script(*arguments):
    """Runs the script in a process in which TensorFlow cannot be imported."""
    code = ("import runpy, sys; sys.modules['tensorflow'] = None; "
            "sys.argv = sys.argv[1:]; sys.path.insert(0, '.'); "
            "runpy.run_path(sys.argv[0], run_name='__main__')")
    return subprocess.run(
        [sys.executable, "-c", code, "create_pretraining_data.py", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_script_without_tensorflow_and_vocab_file(tmp_path):
    pattern = os.path.dirname(_written(tmp_path)) + "/te*.txt"
    output = str(tmp_path / "new" / "train.tfrecord")
    done = _script(
        f"--input_file={pattern}", f"--output_file={output}",
        f"--spm_model_file={SPM_MODEL}", "--max_seq_length=24",
        "--max_predictions_per_seq=4", "--do_permutation", "--dupe_factor=2")
    assert done.returncode == 0, done.stderr
    spec = pretraining_spec(24, 8)
    assert all(spec.parse_numpy(record) for record in read_records(output))
    assert "3 documents, 6 sentences" in done.stderr and output in done.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--input_file=nowhere/*.txt", "--output_file=o"], "no file matches"),
    (["--output_file=o"], "--input_file is missing"),
    (["--input_file=README.md", "--output_file=o", "--ngram=0"], "--ngram=0"),
    (["--input_file=README.md", "--output_file=o", "--spm_model_file="],
     "--spm_model_file"),
])
def test_script_says_what_is_wrong_in_one_line(arguments, message):
    done = _script(*[a.replace("README.md", str(ROOT / "pyproject.toml"))
                     for a in arguments])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_flags_have_the_defaults_of_the_release():
    code = ("import json, sys, create_pretraining_data as c; c.FLAGS(['x']); "
            "print(json.dumps({n: c.FLAGS[n].value for n in sys.argv[1:]}))")
    expected = {
        "input_file": None, "output_file": None, "vocab_file": None,
        "spm_model_file": None, "input_file_mode": "r", "do_lower_case": True,
        "do_whole_word_mask": True, "do_permutation": False,
        "favor_shorter_ngram": True, "random_next_sentence": False,
        "max_seq_length": 512, "ngram": 3, "max_predictions_per_seq": 20,
        "random_seed": 12345, "dupe_factor": 40, "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1, "single_segment": "random", "word_start": "release",
        "strip_digit_comma_prefix": False,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *expected], cwd=ROOT, capture_output=True,
        text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == expected
