"""SQuAD 1.1 and 2.0: questions about a passage."""

# The names of the files that a run writes besides those of all tasks.
FILES = (r"(predictions|nbest_predictions|null_odds|predict_results|null_threshold)"
         r"\.json", r"predictions\.tsv")
