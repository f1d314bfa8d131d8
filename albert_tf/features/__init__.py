"""Vectors of many texts, and how far layers move their input."""
