"""Records: the specification of their features, their bytes on disk, and checks before
a long run."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "spec":
        "Feature FeatureSpec pretraining_spec",
    "tfrecord": "FileInfo RecordWriter read_records",
    "checks": "check_files explain_read_error",
})
