"""Each task in one file: it reads, featurizes, scores and writes predictions."""
