"""What a record is: its features in one specification, its bytes on disk, the checks
before a long run."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "Feature": "spec",
    "FeatureSpec": "spec",
    "pretraining_spec": "spec",
    "classification_spec": "spec",
    "choice_spec": "spec",
    "span_spec": "spec",
    "FileInfo": "tfrecord",
    "RecordWriter": "tfrecord",
    "read_records": "tfrecord",
    "check_files": "checks",
    "explain_read_error": "checks",
})
