"""Tags learned from frozen vectors: experiments/frozen_tags.py.

    python -m pytest tests/experiments/frozen_tags_cases.py

Run by test_own_processes.py.
"""

import types

import numpy as np

from albert_tf.checkpoints import load
from albert_tf.tokenization import tokenizer
from experiments import frozen_tags


def test_rare_entities_are_found(monkeypatch, tmp_path):
    """One word in forty is a name, and its vector differs from others by one deviation:
    without weights, no word would be called a name."""
    names, noise = np.arange(2000) % 40 == 0, np.random.default_rng(1).normal(size=(2000, 1))
    path = tmp_path / "words.conll"
    path.write_text("".join(
        f"word {'B-name' if name else 'O'}\n" + "\n" * (number % 10 == 9)
        for number, name in enumerate(names)))
    monkeypatch.setattr(load, "load", lambda _: types.SimpleNamespace(model=None))
    monkeypatch.setattr(tokenizer, "FullTokenizer", lambda *_, **__: None)
    monkeypatch.setattr(frozen_tags, "word_vectors",
                        lambda *_: noise + names[:, None])
    scores = frozen_tags.scores("model", "vocabulary", str(path), str(path), 64)
    assert scores["f1"] > 0.05
