"""Vectors that sentence-transformers makes of texts; see the package.

    python read_sentence_transformers.py texts.json FOLDER...   # FOLDER/vectors.json
    python read_sentence_transformers.py --save HF_FOLDER NEW_FOLDER

--save writes two folders of its own from a model of Hugging Face: NEW_FOLDER with the
mean, NEW_FOLDER-all with every pooling, a dense layer and Normalize.
"""

import json
import os
import sys

import torch
from sentence_transformers import SentenceTransformer, models

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def save(source, folder):
    torch.manual_seed(1)
    transformer = models.Transformer(source, max_seq_length=20)
    size = transformer.get_embedding_dimension()
    for end, modules in (
            ("", [models.Pooling(size, pooling_mode="mean")]),
            ("-all", [models.Pooling(size, pooling_mode=MODES),
                      models.Dense(size * len(MODES), 5), models.Normalize()])):
        SentenceTransformer(modules=[transformer, *modules]).save(folder + end)


def encode(texts, *folders):
    with open(texts, encoding="utf-8") as stream:
        given = json.load(stream)
    for folder in folders:
        found = SentenceTransformer(folder, device="cpu").encode(given)
        with open(os.path.join(folder, "vectors.json"), "w") as stream:
            json.dump(found.tolist(), stream)


if sys.argv[1] == "--save":
    save(*sys.argv[2:])
else:
    encode(*sys.argv[1:])
