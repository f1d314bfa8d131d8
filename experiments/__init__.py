"""Experiments that train models and compare their scores: the paper's tables and
figures, pretraining recipes, number types and early exit. Each file begins with its
command."""
