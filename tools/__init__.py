"""Programs that maintain the repository; none of them is installed."""
