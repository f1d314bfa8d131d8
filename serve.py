r"""Serves a model over HTTP, in the form of TensorFlow Serving's REST interface.

    python serve.py --model=runs/sst-2 --port=8501
    curl -d '{"instances": ["A fine film."]}' localhost:8501/v1/models/sst-2:predict

The model is whatever `albert_tf.load` takes; inputs and answers are those of predict.py.
/healthz says whether it serves, /metrics how much (Prometheus). SIGTERM or Ctrl-C: what
was taken is answered, what comes is refused with status 503. Needs aiohttp and
prometheus_client.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import asyncio
import importlib.util
import os

from absl import flags, logging

from albert_tf.cli import flags as cli_flags, model_flags
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

model_flags.define_flags()
model_flags.define_exit_flags()
model_flags.define_batch_size(upper_bound=4096)
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_string("host", "127.0.0.1", "Address to listen at; 0.0.0.0 for all of this "
                    "machine, which has no password: only where others are kept out.")
flags.DEFINE_integer("port", 8501, "Port; 0 for a free one.", lower_bound=0,
                     upper_bound=65535)
flags.DEFINE_string("model_name", None, "Name in addresses; default: the folder's.")
flags.DEFINE_string("task", "", "As for predict.py; a request may name another as its "
                    "signature_name.")
flags.DEFINE_integer("queue_size", 1024, "Sequences that wait at most; further requests "
                     "get status 503.", lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_instances", 256, "Inputs of one request.", lower_bound=1,
                     upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_body_bytes", 4 << 20, "Size of one request.", lower_bound=1,
                     upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_text_length", 100_000, "Characters of one text.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE(cli_flags.Number(upper_bound=3600), "stop_seconds", 30.0,
             "Time to answer what was taken, when the server is stopped.")


def main(argv):
    del argv
    model_flags.check_task()
    for package, does in (("aiohttp", "serves HTTP"),
                          ("prometheus_client", "counts requests")):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{package} is not installed, which {does}: pip install {package}.")
    from albert_tf.serving import http

    name = FLAGS.model_name or os.path.basename(os.path.abspath(FLAGS.model))
    if not name or set(name) & set(":/?#% "):
        raise InputError(f"--model_name={name}: must not hold : / ? # % or a blank.")
    limits = http.Limits(
        FLAGS.batch_size, FLAGS.queue_size, FLAGS.max_instances, FLAGS.max_body_bytes,
        FLAGS.max_text_length, FLAGS.stop_seconds)
    model = model_flags.load()
    model_flags.check_batch_size(model.config, model.settings, FLAGS.batch_size)
    task = FLAGS.task or next(iter(model.tasks()))
    exits = FLAGS.exit_threshold is not None
    if exits:
        model.check_exits(FLAGS.exit_threshold, FLAGS.task)
    # The first answer takes as long as hundreds: its graph is made.
    model.head(task, exits).warm_up()

    def ready(address):
        logging.info("Serving at %s/v1/models/%s:predict.", address, name)

    async def run():
        await http.serve(http.Service(
            model, name, limits, FLAGS.task, FLAGS.exit_threshold), FLAGS.host,
                         FLAGS.port, ready)

    asyncio.run(run())
    logging.info("Stopped.")


if __name__ == "__main__":
    script.run(main)
