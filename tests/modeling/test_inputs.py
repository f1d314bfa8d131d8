"""What models are given: other libraries' names, unknown ones, values out of range."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.head import INPUTS

from tests import models

TINY = AlbertConfig(
    vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=1,
    num_attention_heads=2, intermediate_size=12, max_position_embeddings=6)
IDS, ONES, ZEROS = [[2, 7, 3, 0]], [[1, 1, 1, 0]], [[0, 0, 1, 0]]


@pytest.fixture(scope="module", name="model")
def _model():
    return models.classifier(TINY, 3)


def test_names_of_other_libraries(model):
    expected = model({"input_ids": IDS, "input_mask": ONES, "segment_ids": ZEROS})
    also = {"input_ids": IDS, "attention_mask": ONES, "token_type_ids": ZEROS}
    np.testing.assert_array_equal(model(also)["logits"], expected["logits"])
    np.testing.assert_allclose(  # In Keras's graph.
        model.predict({name: np.array(value) for name, value in also.items()},
                      verbose=0)["logits"], expected["logits"], atol=1e-6)
    assert not np.allclose(model({"input_ids": IDS})["logits"], expected["logits"])


@pytest.mark.parametrize("features, pattern", [
    ({"input_ids": [[2, 20]]}, r"input_ids holds 20, .*0\.\.19.*vocab"),
    ({"input_ids": [[2, -1]]}, "holds -1"), ({"input_ids": tf.constant([[2, 99]])}, "99"),
    ({"input_ids": [[2, 3]], "token_type_ids": [[0, 2]]}, "segment_ids holds 2"),
    ({"input_ids": [[2, 3]], "attention_mask": [[1, 7]]}, "input_mask holds 7"),
    *(({"input_ids": ids}, "input_ids must hold whole numbers") for ids in (
        [[2, 3], [2]], tf.ragged.constant([[2, 3], [2]]), [[2.5, 3]], "a text")),
    *(({"input_ids": ids}, r"the shape .* but must be \[batch, tokens\]")
      for ids in ([], np.zeros([0, 4], int), [[]], [2, 3])),
    ({"input_ids": [[2] * 7]}, "7 tokens.*max_position_embeddings 6"),
    ({"input_ids": [[2, 3]], "input_mask": [[1]]}, r"\[1, 1\].*\[1, 2\]"),
    ({"input_ids": [[2, 3]], "atention_mask": [[1, 0]]}, "reads .*attention_mask"),
    ({"input_ids": [[2, 3]], "xyz": [[1, 0]]}, "'xyz'"),
    ({"input_ids": [[2, 3]], "input_mask": [[1, 1]], "attention_mask": [[1, 0]]},
     "'attention_mask', or the same"),
    ({"segment_ids": [[0, 0]]}, "input_ids"), ([[2, 3]], "dict")])
def test_what_cannot_be_is_refused(model, features, pattern):
    with pytest.raises(InputError, match=pattern):
        model(features)


def test_in_graphs_what_is_known_there_is_refused(model):
    @tf.function(autograph=False)
    def run(name):
        return model({"input_ids": tf.constant(IDS), name: tf.constant(ONES)})

    with pytest.raises(InputError, match="no input 'input_masks', .*; it reads "):
        run("input_masks")


@pytest.mark.long
@pytest.mark.parametrize("kind", [AlbertModel, models.spans])
def test_models_are_saved(tmp_path, kind):
    model = kind(TINY)
    batch = dict(zip(INPUTS, map(tf.constant, (IDS, ONES, ZEROS))))
    expected = model(batch)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    again = tf.saved_model.load(str(tmp_path / "saved"))(batch)
    for name in set(expected) - {"encoder_outputs"}:
        np.testing.assert_allclose(again[name], expected[name], atol=1e-5)
