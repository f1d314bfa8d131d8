"""Outputs, or ids, that transformers computes from folders; see the package.

    python read_transformers.py jobs.json
    python read_transformers.py --ids FOLDER text.txt ids.json
"""

import json
import sys

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()
INPUTS = {"input_ids": "input_ids", "input_mask": "attention_mask",
          "segment_ids": "token_type_ids"}
OUTPUTS = {"last_hidden_state": "sequence_output", "pooler_output": "pooled_output",
           "prediction_logits": "mlm_logits", "sop_logits": "sentence_order_logits",
           "start_logits": "start_logits", "end_logits": "end_logits",
           "logits": "logits"}


def hf_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager")
    missing = {name for name in info["missing_keys"] if "pooler" not in name}
    assert not missing and not info["mismatched_keys"], info
    return model


def ids(folder, text, output):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pair = tokenizer("one", "two")
    assert "token_type_ids" in pair and sorted(set(pair["token_type_ids"])) == [0, 1]
    with open(text, encoding="utf-8") as stream:
        lines = stream.read().split("\n")
    found = tokenizer(lines, add_special_tokens=False)["input_ids"]
    with open(output, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


def main(jobs):
    for folder, inputs, outputs in json.load(open(jobs, encoding="utf-8")):
        model = hf_model(folder).eval()
        given = np.load(inputs)
        with torch.no_grad():
            found = model(**{INPUTS[name]: torch.tensor(given[name]) for name in given
                             if name in INPUTS})
        np.savez(outputs, **{
            "mlm_logits" if name == "logits" and "MaskedLM" in type(model).__name__
            else OUTPUTS[name]: value.numpy() for name, value in found.items()
            if name in OUTPUTS})


if sys.argv[1] == "--ids":
    ids(*sys.argv[2:])
else:
    main(sys.argv[1])
