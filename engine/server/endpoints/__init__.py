"""The endpoints besides chat and completions; what their handlers share is in common."""
