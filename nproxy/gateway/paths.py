"""Which paths are passed through to an upstream."""

from __future__ import annotations

from collections.abc import Iterable

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
    return is_inference(path) if settings.paths == "default" else _is_below(path, settings.paths)


def is_inference(path: str) -> bool:
    """Whether a path is one of an inference endpoint, so that its requests name a model."""
    return _is_below(path, DEFAULT_PASSTHROUGH)


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
