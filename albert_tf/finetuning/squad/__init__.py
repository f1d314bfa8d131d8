"""SQuAD 1.1 and 2.0: questions about a passage."""
