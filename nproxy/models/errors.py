"""Errors with models."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be provided; the message is one line that says why and what to do."""


class NoSuchModel(ModelError):
    """A name that is neither a local model nor an id from which one could be fetched: wrong use."""


class NoCache(ModelError):
    """By the environment, fetched models are kept in a home folder that is not known: wrong use."""
