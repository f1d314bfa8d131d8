"""A file of answers: interrupted, resumed, with other inputs or settings."""

import contextlib
import functools
import json
import signal
import time

import pytest

import albert_tf
from albert_tf.errors import InputError
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.serving import answer_file
from albert_tf.serving.options import Ask
from albert_tf.text import inputs
from tests.commands import finish, start_program

LINES = [f"text number {i} " * (1 + 7 * (i % 5)) for i in range(60)]
LINES[3] = "one\ttwo\tthree"


@pytest.fixture(name="given")
def _given(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), "utf-8")
    return str(path)


def write(model, given, output, settings=None, state="s3://1"):
    folder = WorkFolder(f"{output}.unfinished")
    with folder.used(settings or {}, [state]):
        return answer_file.write(
            model, inputs.read(given), str(output), folder, Ask(batch_size=2))


@contextlib.contextmanager
def computed(model, stop=None):
    """The numbers of inputs that a model answers; it stops before the unit `stop`."""
    stream, found = model.stream, []

    def counted(_, *args):
        if len(found) == stop:
            raise KeyboardInterrupt
        answers = list(stream(*args))
        found.append(len(answers))
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "stream", counted)
        yield found


def test_an_interrupted_file_is_resumed(model, given, tmp_path, caplog):
    """Finished units are not computed again, but count; all is as if unbroken."""
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    expected = write(model, given, whole)
    with pytest.raises(KeyboardInterrupt), computed(model, stop=2):
        write(model, given, output)
    kept = (tmp_path / "out.jsonl.unfinished" / "albert_tf.unit-000001.jsonl").read_text()
    assert not output.exists() and len(kept.splitlines()) == 16
    assert "Run the same command again to resume" in caplog.text
    with computed(model) as inputs_of_units:
        assert write(model, given, output) == expected
    assert sum(inputs_of_units) == 60 - 32
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.txt", "out.jsonl", "whole.jsonl"]
    assert (expected.answers, expected.wrong) == (60, 1)
    assert json.loads(output.read_text().splitlines()[3])["line"] == 4
    with pytest.raises(InputError, match="1 of 60 inputs have an `error` .* line 4: "):
        expected.check()
    assert sum(expected.cut.values()) == 24
    assert caplog.text.count("24 of 60 texts are longer than the 64 tokens") == 2


def test_other_inputs_are_answered_from_the_start(model, given, tmp_path):
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt), computed(model, stop=2):
        write(model, given, output, {"top_k": 5})
    with pytest.raises(InputError, match="unfinished run with top_k=5, but this run"):
        write(model, given, output, {"top_k": 3})
    with computed(model) as inputs_of_units:
        write(model, given, output, {"top_k": 5}, state="s3://2")
    assert sum(inputs_of_units) == 60


def test_what_cannot_be_read_again_is_kept(tmp_path):
    output = tmp_path / "out.jsonl"

    def lines():
        yield from ("1", "2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_file.write_stream(lines(), str(output))
    unfinished = tmp_path / "out.jsonl.unfinished"
    assert unfinished.read_text() == "1\n2\n" and not output.exists()
    with pytest.raises(InputError, match=f"{unfinished} holds the answers"):
        answer_file.write_stream(iter("12"), str(output))
    unfinished.unlink()
    answer_file.write_stream(iter("12"), str(output))
    assert output.read_text() == "1\n2\n" and not unfinished.exists()


@pytest.mark.long
def test_a_killed_command_is_resumed(folder, given, tmp_path):
    output, unfinished = tmp_path / "out.jsonl", tmp_path / "work"
    run = functools.partial(start_program, [
        "predict.py", f"--model={folder}", f"--input_file={given}", "--batch_size=1",
        "--windows", "--truncated", f"--output_file=file://{output}",
        f"--work_dir={unfinished}"])
    process = run()
    while process.poll() is None and not (
            unfinished / "albert_tf.unit-000000.json").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    log = finish(run(), status=1)
    assert "Wrote 60 answers to " in log and "1 of 60 inputs have an `error`" in log
    assert not unfinished.exists()
    answers = list(map(json.loads, output.read_text().splitlines()))
    assert [answer.get("truncated") for answer in answers] == [
        None if i == 3 else False for i in range(60)]
    mean = albert_tf.load(folder).predict(LINES[4], windows=True)
    assert answers[4]["probabilities"] == pytest.approx(mean["probabilities"], abs=1e-5)
