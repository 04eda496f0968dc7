"""Attention over a paged KV cache: the cache, a step's plan, and its computation."""
