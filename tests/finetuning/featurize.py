"""What workers compute in test_features.py; TensorFlow, which they need not load, is not
imported here."""

import os
import signal

from albert_tf.errors import InputError


class Featurize:
    """A picklable function with something in it, as a tokenizer is."""

    pickled = 0

    def __init__(self, bad=(), kill=None):
        self.bad, self.kill = bad, kill

    def __getstate__(self):
        Featurize.pickled += 1
        return self.__dict__

    def __call__(self, example):
        if example == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if example in self.bad:
            raise InputError(f"train.tsv, line {example}: no label; give one.")
        return [{"id": [example], "process": [os.getpid()]}] * (example % 3)
