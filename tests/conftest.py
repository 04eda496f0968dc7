"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy import models


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The real default model's .gguf file, fetched on first use and then kept in the user's cache.

    A test that asks for it carries the mark `model`.
    """
    return models.fetch(models.DEFAULT)
