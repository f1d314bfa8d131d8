"""A tag for every word: names, parts of speech."""
