"""Runners that cannot be started, without Apache Beam itself."""

import types

import pytest

from albert_tf.errors import InputError
from albert_tf.jobs import beam

NO_JAR = "Unable to fetch remote job server jar at "


@pytest.mark.parametrize("error, sentence", [
    (RuntimeError(NO_JAR + "https://repo/flink-2.2.jar: <urlopen error [Errno -2]>. x"),
     "downloaded from https://repo/flink-2.2.jar; .* -- --flink_job_server_jar=FILE"),
    (RuntimeError(NO_JAR + "https://repo/spark-3.jar: x"),
     "give -- --spark_job_server_jar=FILE"),
    (FileNotFoundError(2, "No such file or directory", "java"), "needs Java"),
    (NotImplementedError("You must specify a --job_endpoint when using"),
     "give the address of its job server, last: -- --job_endpoint=HOST:PORT"),
    (ConnectionRefusedError(111, "Connection refused"), "its service does not answer"),
    (ValueError("of our own code"), None)])
def test_a_runner_that_cannot_be_started_is_one_sentence(error, sentence):
    def run():
        raise error

    made = types.SimpleNamespace(run=run)
    if sentence is None:
        with pytest.raises(type(error)):
            beam.finish(None, made)
        return
    with pytest.raises(InputError, match=f"--runner: .*{sentence}"):
        beam.finish(None, made)


def test_a_job_server_that_does_not_run_is_not_waited_for():
    with pytest.raises(InputError, match="--job_endpoint=localhost:1: nothing answers"):
        beam.pipeline(None, "PortableRunner", ["--job_endpoint=localhost:1"], 1)
