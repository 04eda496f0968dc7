"""What keeps the repository: nothing of it is installed."""
