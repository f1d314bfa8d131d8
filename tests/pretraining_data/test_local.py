"""Data creation on several processes: same bytes, stopped, resumed, shuffled."""

import collections
import contextlib
import functools
import itertools
import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats

from albert_tf import files
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.local import Sizes
from albert_tf.pretraining_data.options import InstanceOptions
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import read_records
from tests.pretraining_data.data_creation import (
    CORPUS, SPM_MODEL, options_of)

ROOT = pathlib.Path(__file__).parents[2]
SMALL = InstanceOptions(
    max_seq_length=48, masking=MaskingOptions(max_predictions_per_seq=7))
# Many spans and units of a small text, on processes of their own.
MANY_UNITS = Sizes(span_bytes=20_000, few_bytes=0, bucket_bytes=8_000)


def _create(options, tokenizer, num_workers=1, sizes=MANY_UNITS):
    return local.create(
        options, tokenizer, num_workers=num_workers, sizes=sizes)


def _bytes(options):
    return [pathlib.Path(path).read_bytes() for path in options.output_files]


def _rows(options):
    """Records of the first output."""
    instances = options.instances
    spec = pretraining_spec(
        instances.max_seq_length, instances.masking.num_prediction_slots)
    return [spec.parse_numpy(each) for each in read_records(options.output_files[0])]


def _options(tmp_path, outputs=("a.tfrecord", "b.tfrecord", "c.tfrecord"),
             text=CORPUS, **more):
    return options_of(tmp_path, text, outputs, **{
        "instances": SMALL, "dupe_factor": 2, **more})


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tokenizer):
    """What one process makes."""
    options = _options(tmp_path_factory.mktemp("expected"))
    summary = _create(options, tokenizer)
    return _bytes(options), summary


def _check_made(options, tokenizer, expected, num_workers=1):
    """Makes the records, from what is there already, and compares with `expected`."""
    summary = _create(options, tokenizer, num_workers)
    assert _bytes(options) == expected[0]
    assert summary | {"settings": None} == expected[1] | {"settings": None}
    assert not pathlib.Path(f"{options.output_files[0]}.unfinished").exists()


def test_records_do_not_depend_on_processes(tmp_path, tokenizer, expected):
    _check_made(_options(tmp_path), tokenizer, expected, 2)
    assert sorted(os.listdir(tmp_path)) == [
        "a.tfrecord", "b.tfrecord", "c.tfrecord", "summary-a.tfrecord.json", "text.txt"]


# ---- the shuffle ------------------------------------------------------------


def test_every_instance_may_stand_anywhere(tmp_path, tokenizer, monkeypatch):
    """Over many seeds, documents' instances are spread evenly over the outputs."""
    # Made once, which else takes nearly half of the time.
    monkeypatch.setattr(local, "PieceEncoder", functools.cache(local.PieceEncoder))
    words = ("one", "two", "three", "four", "five", "six")
    text = "\n\n".join(f"{word} is away. \n{word} is back." for word in words)
    places = collections.defaultdict(list)
    for seed in range(40):
        options = options_of(
            tmp_path, text, ["out"], dupe_factor=2, random_seed=seed,
            instances=InstanceOptions(max_seq_length=24, short_seq_prob=0,
                                      masking=MaskingOptions(masked_lm_prob=0)))
        _create(options, tokenizer)
        rows = _rows(options)
        assert len(rows) == 12
        for place, row in enumerate(rows):
            found = "".join(tokenizer.convert_ids_to_tokens(row["input_ids"].tolist()))
            (word,) = [word for word in words if word in found]
            places[word].append(place)
    assert len(places) == 6
    for found in places.values():
        assert scipy.stats.chisquare(np.bincount(found, minlength=12)).pvalue > 1e-4
    # Neighbours are no likelier to be of one document than others.
    first = {word: found[0::2] for word, found in places.items()}
    second = {word: found[1::2] for word, found in places.items()}
    gaps = np.concatenate([np.array(second[w]) - np.array(first[w]) for w in places])
    expected = np.array([12 - gap for gap in range(1, 12)]) / 66 * len(gaps)
    assert scipy.stats.chisquare(
        np.bincount(gaps, minlength=12)[1:], expected).pvalue > 1e-4


# ---- stopped, and resumed ----------------------------------------------------


class Stop(Exception):
    """Ends a run as an accident would."""


def _stop(*_):
    raise Stop


def _stopped(options, tokenizer, monkeypatch, owner=local, name="join", function=_stop):
    """Runs until a function raises Stop, by default when all units are made; returns the
    folder for unfinished work."""
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, function)
        with pytest.raises(Stop):
            _create(options, tokenizer)
    return pathlib.Path(f"{options.output_files[0]}.unfinished")


@pytest.mark.parametrize("after", [1, 8, 12])
def test_a_stopped_run_goes_on_to_the_same_bytes(
        after, tmp_path, tokenizer, expected, monkeypatch):
    calls, original, options = itertools.count(), local.Worker.__call__, _options(tmp_path)
    folder = _stopped(
        options, tokenizer, monkeypatch, local.Worker, "__call__", lambda *task: (
            _stop() if next(calls) == after else original(*task)))
    assert not any(map(os.path.exists, options.output_files))
    assert list(folder.glob("*.json"))
    _check_made(options, tokenizer, expected)


@pytest.mark.parametrize("damaged", [
    "unit-000001.records", "unit-000001.json", "plans-00000.json"])
def test_what_was_cut_meanwhile_is_made_again(
        damaged, tmp_path, tokenizer, expected, monkeypatch):
    options = _options(tmp_path)
    os.truncate(_stopped(options, tokenizer, monkeypatch) / f"albert_tf.{damaged}", 9)
    _check_made(options, tokenizer, expected)


def test_finished_units_are_not_made_again(
        tmp_path, tokenizer, expected, monkeypatch):
    options = _options(tmp_path)
    # The instances have left the disk when the outputs are written.
    assert not list(_stopped(options, tokenizer, monkeypatch).glob("*plans-00000-*"))
    for step in ("scatter", "write"):
        monkeypatch.setattr(local, step, _stop)
    _check_made(options, tokenizer, expected)


def test_a_run_stopped_while_files_get_their_names_goes_on(
        tmp_path, tokenizer, expected, monkeypatch):
    options, rename = _options(tmp_path), files.rename
    _stopped(options, tokenizer, monkeypatch, files, "rename", lambda source, target: (
        _stop() if target in options.output_files[1:] else rename(source, target)))
    assert [os.path.exists(path) for path in options.output_files] == [
        True, False, False]
    _check_made(options, tokenizer, expected)


def _command(tmp_path):
    """The script, with small spans and units, in processes of its own."""
    code = (
        "import functools, runpy, sys; sys.path.insert(0, '.')\n"
        "from albert_tf.pretraining_data import local\n"
        "if __name__ == '__main__':\n"
        "    local.create = functools.partial(local.create,\n"
        f"        sizes=local.{MANY_UNITS!r})\n"
        "    sys.argv = sys.argv[1:]\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n")
    script = tmp_path / "small_units.py"
    script.write_text(code)
    outputs = ",".join(str(tmp_path / f"{name}.tfrecord") for name in "abc")
    return [sys.executable, str(script), "create_pretraining_data.py",
            f"--input_file={tmp_path / 'text.txt'}", f"--output_file={outputs}",
            f"--spm_model_file={SPM_MODEL}", "--max_seq_length=48", "--dupe_factor=2",
            "--max_predictions_per_seq=7", "--num_workers=2"]


@pytest.mark.long
@pytest.mark.parametrize("kills", [
    1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills, tmp_path, expected):
    options = _options(tmp_path)
    draw = random.Random(kills)
    for _ in range(kills):
        with subprocess.Popen(_command(tmp_path), cwd=ROOT, start_new_session=True,
                              stderr=subprocess.PIPE) as process:
            time.sleep(draw.uniform(0.3, 3))
            process.kill()
            process.communicate()
        deadline = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):  # There is none in its group.
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            pytest.fail("workers outlived their parent")
    subprocess.run(_command(tmp_path), cwd=ROOT, timeout=120, check=True)
    assert _bytes(options) == expected[0]
