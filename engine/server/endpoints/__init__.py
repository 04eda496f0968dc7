"""The endpoints beside chat and completions; what their handlers share stands in common."""
