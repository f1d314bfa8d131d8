"""Weights by name: finding, reading, comparing, writing; one file for each foreign
format."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "BEST_CHECKPOINT": "files",
    "find_checkpoint": "files",
    "open_checkpoint": "files",
    "read_tensors": "files",
    "write_tensors": "files",
    "write_whole": "files",
    "RestoreReport": "tf1",
    "export_tf1": "tf1",
    "load_tf1_tensors": "tf1",
    "read_config": "tf1",
    "restore_tf1": "tf1",
    "tf1_tensors": "tf1",
    "write_config": "tf1",
})
