"""Experiments that train models and compare their scores: the paper's tables and
figures, and pretraining recipes. Each file begins with its command."""
