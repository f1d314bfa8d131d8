"""The options of answers, in Python, as flags and over HTTP, and a server's limits.

Nothing here loads TensorFlow or aiohttp.
"""

import dataclasses
from typing import Optional, TypedDict

from albert_tf import options
from albert_tf.features.extract import TRUNCATED, WINDOWS
from albert_tf.options import option


@dataclasses.dataclass(frozen=True)
class Ask:
    """How to answer: keyword arguments of `predict`, flags of predict.py and, but for
    `task` and `batch_size`, options of a request's address over HTTP."""

    task: str = option(
        "", "classify, tag, answer, choose, fill-mask, order or embed; default: the "
        "task of the model's head. A pretrained model fills [MASK] in texts that have "
        "one, says which of two texts comes first, and returns a vector for any other "
        "text.")
    top_k: int = option(5, "Number of tokens to return for a [MASK].", least=1)
    batch_size: int = option(
        32, "Maximum number of sequences that are computed together.", least=1)
    windows: bool = option(False, WINDOWS)
    truncated: bool = option(False, TRUNCATED)
    label_threshold: Optional[float] = option(
        None, "For a model of texts with any number of labels: the probability from "
        "which on a label is given; default: as in training, else 0.5.", most=1)
    probability_list: bool = option(
        False, "Give `probabilities` as a list in the order of the labels, not as "
        "label: probability.")

    def __post_init__(self):
        options.check(self)


# The fields of Ask, for type checkers.
AskOptions = TypedDict("AskOptions", {
    "task": str, "top_k": int, "batch_size": int, "windows": bool, "truncated": bool,
    "label_threshold": Optional[float], "probability_list": bool}, total=False)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server: flags of serve.py."""

    queue_size: int = option(1024, "Maximum number of queued sequences; further "
                             "requests get status 503.", least=1)
    instances: int = option(256, "Maximum number of inputs per request.",
                            flag="max_instances", least=1)
    body_bytes: int = option(4 << 20, "Maximum size of a request's body, in bytes.",
                             flag="max_body_bytes", least=1)
    text_length: int = option(100_000, "Maximum length of a text, in characters.",
                              flag="max_text_length", least=1)
    stop_seconds: float = option(30.0, "Maximum time to finish accepted requests after "
                                 "SIGTERM or Ctrl-C, in seconds.", most=3600)
    receive_seconds: float = option(60.0, "Maximum time in which the body of a request "
                                    "must arrive, in seconds.", least=0.1, most=3600)
