"""Long jobs: worker processes, progress, resumable work, locks."""
