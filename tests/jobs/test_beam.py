"""Runners that cannot be started, without Apache Beam itself."""

import types

import pytest

from albert_tf.errors import InputError
from albert_tf.jobs import beam


@pytest.mark.parametrize("error, is_ours", [
    (RuntimeError("Unable to fetch remote job server jar at https://repo/flink.jar: "
                  "<urlopen error [Errno -2]>. x"), False),
    (FileNotFoundError(2, "No such file or directory", "java"), False),
    (NotImplementedError("You must specify a --job_endpoint when using"), False),
    (ConnectionRefusedError(111, "Connection refused"), False),
    (ValueError("of our own code"), True)])
def test_a_runner_that_cannot_be_started_is_one_sentence(error, is_ours):
    def run():
        raise error

    made = types.SimpleNamespace(run=run)
    with pytest.raises(type(error) if is_ours else InputError) as caught:
        beam.finish(None, made)
    assert is_ours or str(caught.value).startswith("--runner: it cannot be started")
