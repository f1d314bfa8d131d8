"""Tagging words: names, parts of speech."""

# The names of the files that a run writes besides those of all tasks.
FILES = (r"predictions\.(conll|conllup|jsonl)", r"(eval|predict)_report\.txt",
         r"predict_results\.json")
