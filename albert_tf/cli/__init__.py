"""Options as absl flags, and what scripts share; else only from_python uses flags."""
