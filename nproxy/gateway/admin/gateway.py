"""The interface between the admin port and the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nproxy.config import Config
from nproxy.gateway.all_processes import AllProcesses
from nproxy.gateway.app import App
from nproxy.gateway.introspect import report, status_document, why_unready
from nproxy.openai.errors import ApiError
from nproxy.telemetry.sums import Report


class Gateway(AllProcesses, Protocol):
    """A gateway: one process, or the parent of several, which reports for all. Raises ApiError 503 if it cannot."""

    @property
    def config(self) -> Config:
        """The current settings."""
        ...

    async def why_unready(self) -> str | None:
        """Return why it should get no requests; None if it is ready for them."""
        ...

    def restart(self) -> None:
        """Replace all processes, one after the other. Raises ApiError 409 if there is only one."""
        ...


class SingleProcess:
    """A gateway of one process."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def config(self) -> Config:
        """Like Gateway.config."""
        return self._app.config

    async def report(self) -> Report:
        """Like Gateway.report."""
        return await report(self._app)

    async def status(self) -> Mapping[str, object]:
        """Like Gateway.status."""
        return status_document(self._app)

    async def why_unready(self) -> str | None:
        """Like Gateway.why_unready."""
        return await why_unready(self._app)

    def restart(self) -> None:
        """Like Gateway.restart: raises ApiError 409."""
        message = "This gateway is a single process, so there are no workers to replace; see listen.workers."
        raise ApiError(409, message, type="invalid_request_error", code="one_process")
