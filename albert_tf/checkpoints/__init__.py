"""Checkpoints: finding, reading, comparing and writing weights by name; one file for
each foreign format."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "conversion": "convert",
    "folders": "BEST_CHECKPOINT find_checkpoint read_tensors write_tensors write_whole",
    "restore":
        "export_tf1 load_tf1_tensors read_config restore_tf1 tf1_tensors write_config",
})
