"""`nproxy keys`: API keys are made here, and kept nowhere but as hashes."""
