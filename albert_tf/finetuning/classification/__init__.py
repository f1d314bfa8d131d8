"""One label of several, or a number, for a text or a pair: GLUE, or own data."""
