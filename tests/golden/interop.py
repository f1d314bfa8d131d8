"""Models of other libraries, with the outputs that those libraries computed: in
tests/fixtures/interop are some folders of ../shared/golden/interop as they are, of the
outputs what is compared.
"""

import json
import pathlib
from typing import Optional

import numpy as np

from albert_tf.config import AlbertConfig
from tests.helpers import SHARED

# Each kind once: heads, types, shards, activations, epsilon, groups, layouts.
FIXTURE_FOLDERS = (
    "hf/model_gelu_erf", "hf/model_layer_norm_eps", "hf/model_embedding_eq_hidden",
    "hf/masked_lm", "hf/pretraining_bfloat16", "hf/pretraining_bin_4_30",
    "hf/pretraining_sharded", "hf/seqcls_2_float16", "hf/seqcls_3_bin_sharded",
    "hf/seqcls_regression", "hf/question_answering", "hf/multiple_choice",
    "hf/token_classification", "hf/model_inner2", "keras_hub/masked_lm",
    "keras_hub/text_classifier_3", "keras_hub/backbone_groups2_inner2",
    "tf_models/encoder_embedding_eq_hidden", "tf_models/pretrainer")
# Their outputs → ours; of the others (hidden_states_1, say) there is no counterpart.
_INPUTS = {
    "input_ids": ("input_ids", "token_ids", "input_word_ids"),
    "input_mask": ("attention_mask", "padding_mask", "input_mask"),
    "segment_ids": ("token_type_ids", "segment_ids", "input_type_ids"),
    "masked_lm_positions": ("mask_positions", "masked_lm_positions")}
_OUTPUTS = {
    "sequence_output": ("last_hidden_state", "sequence_output",
                        "backbone_sequence_output"),
    "pooled_output": ("pooler_output", "pooled_output", "backbone_pooled_output"),
    "mlm_logits": ("prediction_logits", "mlm_logits"),
    "sentence_order_logits": ("sop_logits",), "logits": ("logits",),
    "start_log_probs": ("start_logits",), "end_log_probs": ("end_logits",)}


def other_folders() -> list[str]:
    """The folders with a model and outputs that are not among the fixtures."""
    root = SHARED and SHARED / "golden" / "interop"
    return sorted({str(path.parent.relative_to(root)) for path in root.glob(
        "*/*/outputs.npz")} - {*FIXTURE_FOLDERS, "hf/tokenizer_v4_fast"}) if root else []


def config(folder: pathlib.Path) -> Optional[AlbertConfig]:
    """What must be given to load a folder: tf-models' checkpoints do not tell."""
    if folder.parent.name != "tf_models" or folder.name.startswith("saved_model"):
        return None
    if folder.name.startswith("from_release_"):
        case = folder.name.removeprefix("from_release_").rpartition("_")[0]
        return AlbertConfig.from_json_file(str(
            SHARED / "golden" / "model_forward" / case / "albert_config.json"))
    made = json.loads((folder / "fixture.json").read_text())["config"]
    return AlbertConfig(
        vocab_size=made["vocab_size"], embedding_size=made["embedding_width"],
        hidden_size=made["hidden_size"], num_hidden_layers=made["num_layers"],
        num_attention_heads=made["num_attention_heads"],
        intermediate_size=made["intermediate_size"],
        max_position_embeddings=made["max_sequence_length"],
        type_vocab_size=made.get("type_vocab_size", 16))


def case(folder: pathlib.Path) -> tuple[str, dict, dict]:
    """The path to load, inputs and expected outputs by our names."""
    stored = dict(np.load(folder / "outputs.npz"))
    inputs = {ours: stored[name].astype("i4") for ours, names in _INPUTS.items()
              for name in names if name in stored}
    outputs = {ours: stored[name] for ours, names in _OUTPUTS.items()
               for name in names if name in stored}
    if folder.name.startswith("masked_lm") and "logits" in outputs:
        outputs["mlm_logits"] = outputs.pop("logits")
    for name in ("start_log_probs", "end_log_probs"):
        if name in outputs:
            shifted = outputs[name] - outputs[name].max(axis=-1, keepdims=True)
            outputs[name] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    if "from_release" in folder.name:  # Row 5 is all padding: each masks otherwise.
        outputs = {name: value[:5] for name, value in outputs.items()}
    path = folder / "export"
    return str(path if path.exists() else folder), inputs, outputs


def assert_gives(model, inputs: dict, outputs: dict) -> None:
    """Outputs within 1e-5, of as many rows as are stored."""
    found = model(inputs, training=False)
    for name, expected in outputs.items():
        np.testing.assert_allclose(
            found[name].numpy()[:len(expected)], expected, atol=1e-5, rtol=1e-5,
            err_msg=name)
