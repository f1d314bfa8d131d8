"""RACE: questions with four options."""
