"""Chooses the n-grams to mask and what replaces them. One set of options serves three
maskers: for one sequence (as the original implementation does), for a batch (data
creation), and in TensorFlow (during training)."""
