"""Options as absl flags, and what the scripts share. Besides them, only from_python uses
flags."""
