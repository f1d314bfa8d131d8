"""Long jobs: worker processes, progress, folders that are resumed and locked."""
