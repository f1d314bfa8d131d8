"""Fine-tuning: from labelled data to features, batches of a few lengths, scores and
files of predictions."""
