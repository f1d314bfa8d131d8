"""Weights by name: finding, reading, comparing, writing; one file for each foreign
format.
"""
