"""Classification and regression of a text or a pair of texts: GLUE, or your own data."""

# The names of the files that a run writes besides those of all tasks.
FILES = (r"(test_results|submit_results|predictions|[A-Z][\w-]*)\.tsv",
         r"eval_report\.(txt|png)", r"predict_report\.txt", r"predict_results\.json")
