"""Pages of docs/ that are generated from the code: `make docs` writes them, and a test fails if one is stale."""
