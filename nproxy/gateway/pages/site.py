"""Serves the files of the enabled pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nproxy.config import Pages
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.pages.policy import Page, headers_of
from nproxy.gateway.representation import Representation, respond_with

TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Content types by file suffix. Files with other suffixes are not served."""

ADDRESSES: Mapping[Page, str] = {"playground": "/", "docs": "/docs"}
"""The path of each page's index.html. The other files are below the page's name, where relative links lead to them."""

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file and the page that it belongs to."""

    page: Page
    path: Path


class Site:
    """The pages of one gateway. Their files are listed at creation, and kept in memory after their first request."""

    __slots__ = ("_files", "_loaded")

    def __init__(self) -> None:
        self._files = dict(_page_files())
        self._loaded: dict[Path, Representation] = {}

    def find(self, settings: Pages, method: str, path: str) -> PageFile | None:
        """Return the file that a request is for; None if there is none, or the method is not GET or HEAD."""
        file = self._files.get(path)
        if file is None or method not in ("GET", "HEAD") or not getattr(settings, file.page):
            return None
        return file

    async def serve(self, exchange: Exchange, file: PageFile) -> None:
        """Answer with a file, or with 304 if the client has it. Raises ClientLeft."""
        loaded = self._loaded.get(file.path)
        if loaded is None:
            loaded = self._loaded[file.path] = await asyncio.to_thread(_read, file)
        await respond_with(exchange, loaded)


def _page_files() -> Iterator[tuple[str, PageFile]]:
    for page, address in ADDRESSES.items():
        for path in sorted((FOLDER / page).rglob("*")):
            if path.suffix in TYPES:
                name = path.relative_to(FOLDER).as_posix()
                yield (address if name == f"{page}/index.html" else f"/{name}"), PageFile(page, path)


def _read(file: PageFile) -> Representation:
    return Representation.of(file.path.read_bytes(), TYPES[file.path.suffix], headers_of(file.page))
