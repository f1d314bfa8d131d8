"""Checkpoints: finding, reading, comparing and writing weights by name; one file for
each foreign format."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.checkpoints.formats import convert as convert
    from albert_tf.checkpoints.folders import (
        BEST_CHECKPOINT as BEST_CHECKPOINT, find_checkpoint as find_checkpoint,
        read_tensors as read_tensors, write_tensors as write_tensors,
        write_whole as write_whole)
    from albert_tf.checkpoints.restore import (
        export_tf1 as export_tf1, load_tf1_tensors as load_tf1_tensors,
        read_config as read_config, restore_tf1 as restore_tf1,
        tf1_tensors as tf1_tensors, write_config as write_config)
else:
    __getattr__, __dir__ = lazily(__name__, {
        "formats": "convert",
        "folders": "BEST_CHECKPOINT find_checkpoint read_tensors write_tensors write_whole",
        "restore":
            "export_tf1 load_tf1_tensors read_config restore_tf1 tf1_tensors write_config",
    })
