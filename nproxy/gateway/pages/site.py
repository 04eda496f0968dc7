"""All pages: which file a path means, where its page is switched on, and the answer with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiohttp import hdrs
from aiohttp.helpers import ETAG_ANY
from aiohttp.web_request import BaseRequest

from nproxy.config import Pages
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.pages.files import TYPES, File, takes_gzip

Page = Literal["playground", "docs"]
"""A folder beside this file, and the setting that switches it on."""

ADDRESSES: Mapping[Page, str] = {"playground": "/", "docs": "/docs"}
"""Where each page's index.html is; its other files are below its own name, so that relative links lead to them."""

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Place:
    """A file and the page that it is of."""

    page: Page
    path: Path


class Site:
    """The pages of one gateway. Their files are listed when it is made, and kept in memory once they were asked for."""

    __slots__ = ("_files", "_places")

    def __init__(self, folder: Path = FOLDER) -> None:
        self._places = dict(_places(folder))
        self._files: dict[Path, File] = {}

    def find(self, settings: Pages, method: str, path: str) -> Place | None:
        """The file that a request is for, None where it is for none. Other methods than GET and HEAD mean no page."""
        place = self._places.get(path)
        if place is None or method not in ("GET", "HEAD") or not getattr(settings, place.page):
            return None
        return place

    async def serve(self, exchange: Exchange, place: Place) -> None:
        """Answer with a file, or with 304 where the client has it. Raises ClientLeft."""
        file = self._files.get(place.path)
        if file is None:
            file = self._files[place.path] = await asyncio.to_thread(File.read, place.path)
        await tell(exchange, file)


async def tell(exchange: Exchange, file: File) -> None:
    """Answer with it, or with 304 where the client has it. Raises ClientLeft."""
    headers = file.headers()
    if _has(exchange.request, file):
        await exchange.respond(304, b"", headers, file.content_type)
    elif file.zipped is not None and takes_gzip(exchange.request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        await exchange.respond(200, file.zipped, {**headers, hdrs.CONTENT_ENCODING: "gzip"}, file.content_type)
    else:
        await exchange.respond(200, file.body, headers, file.content_type)


def _places(folder: Path) -> Iterator[tuple[str, Place]]:
    for page, address in ADDRESSES.items():
        for path in sorted((folder / page).rglob("*")):
            if path.suffix in TYPES:
                name = path.relative_to(folder).as_posix()
                yield (address if name == f"{page}/index.html" else f"/{name}"), Place(page, path)


def _has(request: BaseRequest, file: File) -> bool:
    known = request.if_none_match or ()
    return any(tag.value in (ETAG_ANY, file.tag.value) for tag in known)
