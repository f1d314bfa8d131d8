"""Long jobs: processes, progress, work that resumes, locks, clusters."""
