"""Texts and settings that tests of data creation share."""

import gzip
import json

import numpy as np

from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data.options import DataOptions, InstanceOptions
from albert_tf.pretraining_data.plans import Documents
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import read_records
from tests.helpers import FIXTURES

RUNS = json.loads((FIXTURES / "pretraining_data" / "runs.json").read_text())
CORPUS = gzip.decompress((FIXTURES / "pretraining_data" / "corpus.txt.gz").read_bytes())
SPM_MODEL = str(FIXTURES / "spm" / "en4k.model")
WORDPIECE = str(FIXTURES / "tokenization" / "wp_vocab.txt")
TEXT = ("The cat sat on the mat.\nIt saw a mouse there.\nThe mouse ran away.\n\n"
        "Rain fell in the night.\nThe river rose above its banks.\n\n"
        "A single sentence is a document too.\n")


def written(tmp_path, text=TEXT, name="text.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def options_of(tmp_path, text=TEXT, outputs=("out.tfrecord",), **options):
    instances = options.pop("instances", InstanceOptions(max_seq_length=24))
    return DataOptions(
        (written(tmp_path, text),), tuple(str(tmp_path / o) for o in outputs),
        instances, **{"dupe_factor": 3, **options})


def golden_options(run, tmp_path, dupe_factor):
    flags = dict(run["flags"])
    inputs = [CORPUS]
    if flags["inputs"] == 2:
        # No blank line at the end of the first: its last document runs on.
        inputs = [CORPUS[:97842], CORPUS[97843:]]
    names = ("masked_lm_prob", "ngram", "favor_shorter_ngram", "do_whole_word_mask",
             "do_permutation", "max_predictions_per_seq")
    masking = MaskingOptions(**{n: flags[n] for n in names if n in flags})
    names = ("max_seq_length", "short_seq_prob", "random_next_sentence")
    instances = InstanceOptions(
        **{n: flags[n] for n in names if n in flags}, masking=masking)
    return DataOptions(
        tuple(written(tmp_path, text, f"part{i}") for i, text in enumerate(inputs)),
        tuple(str(tmp_path / f"out{i}") for i in range(flags["outputs"])),
        instances, dupe_factor)


def records_of(options):
    """The values of all records, by their names on disk."""
    spec = pretraining_spec(options.instances.max_seq_length,
                            options.instances.masking.num_prediction_slots)
    return [spec.parse_numpy(record) for path in options.output_files
            for record in read_records(path)]


def documents_of(lengths):
    """Documents with sentences of these lengths; codes count from 10."""
    sentences = np.array([n for document in lengths for n in document], np.uint32)
    sizes = [sum(document) + 1 for document in lengths]
    return Documents(
        np.arange(10, 10 + sum(sizes), dtype=np.uint16), sentences,
        np.cumsum([0, *map(len, lengths)]),
        np.arange(len(lengths), dtype=np.uint64) + 100)
