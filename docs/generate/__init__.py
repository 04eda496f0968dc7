"""Pages of docs/ that are made from the code: `make docs` writes them, and a test fails when one is stale."""
