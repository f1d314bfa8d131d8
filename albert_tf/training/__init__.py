"""Training: losses, optimizer, the step on every replica, and the loop that saves,
evaluates and resumes."""
