"""What goes wrong with models."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be had; the message is one line that says why and what to do."""


class NoSuchModel(ModelError):
    """A name that is neither a model here nor an id to fetch one by: wrong use."""
