"""Labelled data to features, batches of a few lengths, scores, files of predictions."""
