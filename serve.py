r"""Serves a model over HTTP, in the form of TensorFlow Serving's REST interface.

    python serve.py --model=runs/sst-2 --port=8501
    curl -d '{"instances": ["A fine film."]}' localhost:8501/v1/models/sst-2:predict

The model is anything that `albert_tf.load` accepts; inputs and answers are those of
predict.py. /healthz says whether the server is ready, /metrics has counters for
Prometheus. After SIGTERM or Ctrl-C, requests already accepted are finished and no others
are accepted. Needs aiohttp and prometheus_client.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

import os

from absl import flags, logging

from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from albert_tf.options import given
from albert_tf.serving.options import Ask, Limits

FLAGS = flags.FLAGS

define(cli_flags.UsedModel, Ask, Limits,
       without="top_k windows truncated probability_list")
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for all "
                    "addresses of this machine. The server has no password: do not use "
                    "0.0.0.0 on an open network.")
flags.DEFINE_integer("port", 8501, "Port to listen on; 0 for a free one.",
                     lower_bound=0, upper_bound=65535)
flags.DEFINE_string("model_name", None, "Name of the model in addresses; default: the "
                    "name of its folder.")


def main(argv):
    from albert_tf.serving import engines, http

    name = FLAGS.model_name or os.path.basename(os.path.abspath(FLAGS.model))
    if not name.isprintable() or not name or set(name) & set(":/?#%{} "):
        raise InputError(f"--model_name={ascii(name)[1:-1]}: must not be empty or "
                         "contain spaces, control characters or any of : / ? # % { }.")
    ask, limits = given(Ask, FLAGS), given(Limits, FLAGS)
    model = cli_flags.load_model()
    model.check(ask)
    task = ask.task or next(iter(model.tasks()))
    # Before the first request, so that all of them are answered in the same way.
    engines.use(model, FLAGS.engine, FLAGS.model, task)
    # Traces the graph now: otherwise the first request takes as long as hundreds.
    model.head(task).warm_up()

    def ready(address):
        logging.info("Serving at %s/v1/models/%s:predict.", address, name)

    http.serve(http.Service(model, name, limits, ask), FLAGS.host, FLAGS.port, ready)
    logging.info("Stopped.")


if __name__ == "__main__":
    script.run(main)
