"""Which paths are passed through to an upstream."""

from __future__ import annotations

from nproxy.config import Passthrough

DEFAULT_PASSTHROUGH = (
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio",
    "/v1/images",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/pooling",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/tokenizer_info",
    "/v2/rerank",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
)
"""Inference endpoints other than the two that nproxy understands, with all paths below them."""


def passes(settings: Passthrough, path: str) -> bool:
    """Whether a path is passed through. It is none of nproxy's own; ambiguous paths are refused elsewhere."""
    if settings.paths == "all":
        return True
    roots = DEFAULT_PASSTHROUGH if settings.paths == "default" else settings.paths
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
