"""Text to TFRecords: documents, segment pairs, masks, a shuffle over all, shards; on
one machine, on a cluster, or as the release."""
