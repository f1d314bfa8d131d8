"""Folders of tiny models with the vocabulary en4k.model, to ask."""

import functools
import json
import shutil

from albert_tf.checkpoints.restore import export_tf1, write_config
from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from tests import models, tiny_run
from tests.helpers import FIXTURES

SPM = FIXTURES / "spm" / "en4k.model"
TINY = AlbertConfig(
    vocab_size=4000, embedding_size=8, hidden_size=16, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=24, max_position_embeddings=64)
KINDS = {
    "encoder": AlbertModel,
    "pretrained": models.AlbertForPreTraining,
    "classes": functools.partial(models.classifier, num_labels=3),
    "several": functools.partial(models.classifier, num_labels=3,
                                 problem_type="multi_label_classification"),
    "number": functools.partial(models.classifier, num_labels=1),
    "spans": models.spans,
    "spans2": models.conditional_spans,
    "choices": models.multiple_choice,
    "tags": functools.partial(models.tagger, num_labels=5),
}
_LABELS = {"several": ["late", "dear", "好"], "classes": ["bad", "good", "好"],
           "tags": ["O", "B-X", "I-X", "B-Y", "I-Y"]}


def write(folder, kind: str, spm=SPM, config=TINY, **flags) -> str:
    """Writes a model of random weights as a run leaves it; `flags` are in task.json."""
    from albert_tf.checkpoints.restore import load_tf1_tensors

    model = KINDS[kind](config)
    load_tf1_tensors(model, tiny_run.weights_of(model))
    folder.mkdir(parents=True)
    export_tf1(model, str(folder / "model.ckpt-best"))
    write_config(str(folder), config)
    shutil.copy(spm, folder)
    if kind not in ("encoder", "pretrained"):
        (folder / "task.json").write_text(json.dumps({
            "task": "race" if kind == "choices" else "custom",
            "labels": _LABELS.get(kind, []),
            **({"problem_type": "multi_label_classification"} if kind == "several"
               else {}),
            **({"head": "token_classification"} if kind == "tags" else {}),
            "vocabulary": {"file": spm.name}, "vocabulary_flag": "spm_model_file",
            "flags": flags}))
    return str(folder)
