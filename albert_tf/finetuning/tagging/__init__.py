"""Tagging words: names, parts of speech."""
