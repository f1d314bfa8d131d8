"""Names in exported SavedModels."""

LABELS_FILE = "labels.txt"
# Advice for a label that this file cannot hold.
RENAME = "rename it in the config.json or task.json of the model"
SIGNATURE = "serving_default"
# Signatures of an export that takes text: one takes ids, one converts text to ids.
IDS_SIGNATURE, TOKENIZE_SIGNATURE = "ids", "tokenize"
