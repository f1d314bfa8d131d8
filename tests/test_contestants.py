"""What benchmarks compare ours with takes steps that learn."""

import pytest
import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from benchmarks import contestants, peers


class Encoder(tf_keras.Model):
    """In place of tf-models-official's, which is not always there."""

    def __init__(self, config, dtype):
        super().__init__()
        del dtype
        self.table = tf_keras.layers.Embedding(config.vocab_size, config.embedding_size)
        self.projection = tf_keras.layers.Dense(config.hidden_size)

    def call(self, inputs, training=False):
        sequence = self.projection(self.table(inputs["input_word_ids"]))
        return {"sequence_output": sequence, "pooled_output": sequence[:, 0]}

    def get_embedding_table(self):
        return self.table.embeddings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tf_models_takes_a_step_in_our_loop(monkeypatch, dtype):
    made = []
    monkeypatch.setattr(peers, "tf_models_encoder",
                        lambda *given: made.append(Encoder(*given)) or made[-1])
    config = AlbertConfig(
        vocab_size=100, embedding_size=16, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=16)
    step = contestants.tf_models(config, 2, 16, dtype)
    before = tf.identity(made[0].projection.kernel)
    step()
    assert tf.reduce_any(made[0].projection.kernel != before)


def test_a_peer_whose_package_is_missing_is_left_out(caplog):
    makers = {"there": lambda: 1, "gone": lambda: peers.imported("no_such_package", "X")}
    assert peers.installed(makers) == {"there": 1}
    assert "Leaving out gone: X cannot be imported" in caplog.text
