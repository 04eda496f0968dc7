"""The playground in Debian's Chromium, with the default model or a scripted upstream behind it.

Every scene leaves screenshots in build/screenshots. A page that logs an error or violates its policy fails its test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.playground.window import Pages


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    opened = Pages(browser)
    yield opened
    for context in opened.contexts:
        context.close()
    assert opened.wrong == []
