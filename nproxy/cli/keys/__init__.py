"""`nproxy keys`: creates API keys, and stores only their hashes."""
