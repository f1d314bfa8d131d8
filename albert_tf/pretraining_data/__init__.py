"""Creates pretraining TFRecords from text: on one machine, on a cluster, or exactly as
the original implementation does."""
