"""RACE: questions with four options."""

# The names of the files that a run writes besides those of all tasks.
FILES = r"predictions\.(tsv|json)", r"predict_results\.json"
