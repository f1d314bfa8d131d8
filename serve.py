r"""Serves a model over HTTP, in the form of TensorFlow Serving's REST interface.

    python serve.py --model=runs/sst-2 --port=8501
    curl -d '{"instances": ["A fine film."]}' localhost:8501/v1/models/sst-2:predict

The model is anything that `albert_tf.load` accepts; inputs and answers are those of
predict.py. /healthz says whether the server is ready, /metrics has counters for
Prometheus. After SIGTERM or Ctrl-C, requests already accepted are finished and no others
are accepted. Needs aiohttp and prometheus_client.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

import importlib.util
import os

from absl import flags, logging

from albert_tf.cli import checks, flags as cli_flags, model_flags
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

model_flags.define_flags()
model_flags.define_label_threshold()
model_flags.define_batch_size(upper_bound=4096)
model_flags.define_engine()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for all "
                    "addresses of this machine. The server has no password: do not use "
                    "0.0.0.0 on an open network.")
flags.DEFINE_integer("port", 8501, "Port to listen on; 0 for a free one.",
                     lower_bound=0, upper_bound=65535)
flags.DEFINE_string("model_name", None, "Name of the model in addresses; default: the "
                    "name of its folder.")
flags.DEFINE_string("task", "", "classify, tag, answer, choose, fill-mask, order or "
                    "embed; default: as for predict.py. A request can choose a "
                    "different task as its signature_name.")
flags.DEFINE_integer("queue_size", 1024, "Maximum number of queued sequences; further "
                     "requests get status 503.", lower_bound=1,
                     upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_instances", 256, "Maximum number of inputs per request.",
                     lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_body_bytes", 4 << 20, "Maximum size of a request's body, in "
                     "bytes.", lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE_integer("max_text_length", 100_000, "Maximum length of a text, in "
                     "characters.", lower_bound=1, upper_bound=cli_flags.MOST)
flags.DEFINE(checks.Number(upper_bound=3600), "stop_seconds", 30.0,
             "Maximum time to finish accepted requests after SIGTERM or Ctrl-C, in "
             "seconds.")
flags.DEFINE(checks.Number(lower_bound=0.1, upper_bound=3600), "receive_seconds",
             60.0, "Maximum time in which the body of a request must arrive, in "
             "seconds.")


def main(argv):
    del argv
    model_flags.check_task()
    model_flags.check_engine()
    for package, does in (("aiohttp", "serves HTTP"),
                          ("prometheus_client", "counts requests")):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"the package {package}, which {does}, is not installed; run pip "
                f"install {package}.")
    from albert_tf.serving import engines, http

    name = FLAGS.model_name or os.path.basename(os.path.abspath(FLAGS.model))
    if not name or set(name) & set(":/?#% "):
        raise InputError(f"--model_name={name}: must not be empty or contain a space "
                         "or any of : / ? # %.")
    if not name.isprintable():  # Bytes that are not UTF-8 are halves of pairs here.
        raise InputError(f"--model_name={ascii(name)[1:-1]}: must be UTF-8 without "
                         "control characters.")
    limits = http.Limits(
        FLAGS.batch_size, FLAGS.queue_size, FLAGS.max_instances, FLAGS.max_body_bytes,
        FLAGS.max_text_length, FLAGS.stop_seconds, FLAGS.receive_seconds)
    model = model_flags.load()
    model_flags.check_batch_size(model.config, model.settings, FLAGS.batch_size)
    task = FLAGS.task or next(iter(model.tasks()))
    model.check(FLAGS.task, label_threshold=FLAGS.label_threshold)
    # Before the first request, so that all of them are answered in the same way.
    engines.use(model, FLAGS.engine, FLAGS.model, task)
    # Traces the graph now: otherwise the first request takes as long as hundreds.
    model.head(task).warm_up()

    def ready(address):
        logging.info("Serving at %s/v1/models/%s:predict.", address, name)

    http.serve(http.Service(
        model, name, limits, FLAGS.task, FLAGS.label_threshold),
        FLAGS.host, FLAGS.port, ready)
    logging.info("Stopped.")


if __name__ == "__main__":
    script.run(main)
