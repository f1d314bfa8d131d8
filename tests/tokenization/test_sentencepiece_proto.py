"""An installed sentencepiece that protobuf refuses, as of TensorFlow 2.18."""

import sys

import pytest

from albert_tf.errors import InputError
from albert_tf.tokenization.sentencepiece_proto import model_proto


class _Refused:
    """Stands before all importers: the module runs into protobuf's check."""

    def find_spec(self, name, path=None, target=None):
        if name == "sentencepiece.sentencepiece_model_pb2":
            raise TypeError("gencode 7.36.1 runtime 5.29.5")


def test_a_package_of_another_protobuf_gives_one_sentence(monkeypatch):
    import sentencepiece

    monkeypatch.delitem(sys.modules, "sentencepiece.sentencepiece_model_pb2",
                        raising=False)
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Refused(), *sys.meta_path])
    with pytest.raises(InputError, match="runtime 5.29.5.*install sentencepiece==0.2.0"):
        model_proto()
