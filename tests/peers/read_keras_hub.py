"""Outputs that keras-hub computes from presets; see the package."""

import json
import os
import sys

import keras_hub
import numpy as np

INPUTS = {"input_ids": "token_ids", "input_mask": "padding_mask",
          "segment_ids": "segment_ids"}

for folder, inputs, outputs in json.load(open(sys.argv[1], encoding="utf-8")):
    given = np.load(inputs)
    batch = {INPUTS[name]: given[name] for name in given if name in INPUTS}
    if os.path.exists(os.path.join(folder, "task.json")):
        found = {"logits": keras_hub.models.TextClassifier.from_preset(folder)(batch)}
    else:
        found = keras_hub.models.Backbone.from_preset(folder)(batch)
    np.savez(outputs, **{name: np.asarray(value) for name, value in found.items()})
