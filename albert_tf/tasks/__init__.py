"""The tasks of fine-tuning: each owns reading, featurizing and scoring its data."""
