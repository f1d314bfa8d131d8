"""Turns raw text into one sentence per line: readers, sentence splitting, held-out
documents."""
