"""Records: the specification of their features, their bytes on disk, and checks before
a long run."""

from albert_tf.records.checks import (
    check_files as check_files, explain_read_error as explain_read_error)
from albert_tf.records.spec import (
    Feature as Feature, FeatureSpec as FeatureSpec, pretraining_spec as pretraining_spec)
from albert_tf.records.tfrecord import (
    FileInfo as FileInfo, RecordWriter as RecordWriter, read_records as read_records)
