"""Which models an upstream serves: as configured, or by its own list."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import loads

log = logging.getLogger("nproxy.upstreams")

FRESH_SECONDS = 30.0
"""How old a list may be before it is read again."""
RECENT_SECONDS = 2.0
"""A list younger than this is not read again for a model that it lacks, nor if the server was not ready to send one."""
WAIT_SECONDS = 1.0
"""How long a request waits for a list that may have its model by now. A list that takes longer is not awaited again."""
FIRST_SECONDS = 3.0
"""How long a request waits for a list that was never read, as it might go to the wrong upstream otherwise."""

_LATEST = ":latest"
"""The tag that a name without one has in Ollama: `llama3.2` is `llama3.2:latest`, and the list has the latter."""

_STARTING = 503
"""A server that is loading its model, or has none at the moment. It may have a list later."""
_NOT_NOW = frozenset({401, 403, 408, 425, 429})
"""These statuses, and all from 500 on, do not show whether there is a list."""

ListAnswer = tuple[int, bytes] | None
"""The status and body of an answer to a request for the list; None if the upstream did not answer."""


@frozen
class ModelName:
    """How a model is called: by clients, and by the upstream (None if that is the same).

    listed: the upstream's own list has it, so that no client has made it up.
    """

    shown: str
    upstream: str | None = None
    listed: bool = False

    @property
    def implied(self) -> bool:
        """Whether the list has it by another name only, so that it is an assumption that this one is meant."""
        return self.listed and self.upstream is not None


class ModelList:
    """The models of one upstream, as far as they are known. Pure but for the log: `list_keeper.py` reads the list.

    configured: maps the client's name of a model to the upstream's; None to ask the upstream. upstream: its name in the
    log. Times are in seconds of a monotonic clock.

    A list that was read is kept until another answer replaces it: a server that is too busy to send its list still has
    the same models. If there is no list, any model is accepted, and the upstream itself rejects what it does not have.
    """

    def __init__(self, configured: Mapping[str, str] | None, upstream: str = "") -> None:
        self.configured = configured is not None
        self._configured = configured
        self._names = {
            shown: ModelName(shown, None if name == shown else name) for shown, name in (configured or {}).items()
        }
        self._upstream = upstream
        self._logged = False  # it was logged that an answer held no list
        self._announced: Mapping[str, dict[str, Any]] = {}
        self._read: Mapping[str, dict[str, Any]] | None = None  # by the upstream's name; None: not readable
        self._entries: Mapping[str, dict[str, Any]] | None = None  # what was read, and what was announced
        self._wanted = False
        self._reading = False
        self._not_yet = False  # no list came so far, and the server was not ready to answer
        self._slow = False  # the last reading took so long that no request should wait for the next one
        self._began = self._ended = -inf  # the last reading

    @property
    def readable(self) -> bool:
        """Whether the upstream's own list could be read, or a server announced its models."""
        return self._entries is not None

    def find(self, model: str) -> ModelName | None:
        """Find a model by the client's name, in the configuration or in the list; None if it is in neither."""
        if self._configured is not None:
            return self._names.get(model)
        listed = self._listed(model)
        return None if listed is None else ModelName(model, None if listed == model else listed, listed=True)

    def _listed(self, model: str) -> str | None:
        """The name by which the list has a model; None if the list does not have it, or there is no list."""
        if self._entries is None:
            return None
        if model in self._entries:
            return model
        return model + _LATEST if model + _LATEST in self._entries else None

    def lacks(self, model: str) -> bool:
        """Whether the upstream is known not to have a model, given by the client's name."""
        if self._configured is not None:
            return model not in self._names
        return self._entries is not None and self._listed(model) is None

    def takes_any(self) -> bool:
        """Whether any model is accepted: none are configured, and there is no list."""
        return self._configured is None and self._entries is None

    def entries(self) -> Mapping[str, dict[str, Any]]:
        """The entries for `/v1/models`, by the client's name of the model."""
        known = self._entries or MappingProxyType({})
        if self._configured is None:
            return known
        return {shown: known.get(self._listed(name) or "", {}) for shown, name in self._configured.items()}

    def entry(self, model: str) -> Mapping[str, Any] | None:
        """The entry of a model, given by the client's name; None if it is not served."""
        return self.entries().get(model if self._configured is not None else self._listed(model) or "")

    # ---- when the list is read

    def want(self, now: float, *, lacking: bool = False) -> bool:
        """Have the list read if it is old. lacking: for a model that it lacks. Returns whether it is now to be read."""
        soon = self._not_yet or (lacking and self._entries is not None)
        age = RECENT_SECONDS if soon else FRESH_SECONDS
        if not self._reading and now - self._ended >= age:
            self._wanted = True
        return self._wanted or self._reading

    @property
    def due(self) -> bool:
        """Whether a reading is to begin. There is one at a time."""
        return self._wanted and not self._reading

    def patience(self, *, lost: bool) -> float:
        """How many seconds a request may wait for the list. lost: no other list has its model."""
        if self._slow or not (self._wanted or self._reading):
            return 0.0
        if self._ended == -inf:  # nothing is known yet
            return FIRST_SECONDS if lost else WAIT_SECONDS
        return WAIT_SECONDS if lost else 0.0

    def outdated(self) -> None:
        """Note that the servers have changed: read the list again if it was read, even if it is being read now."""
        if self._began > -inf:
            self._wanted = True
            self._slow = False

    def announce(self, models: Iterable[str]) -> None:
        """Take the models that single servers said they serve; they are part of the list."""
        self._announced = {model: {} for model in models}
        self._join()

    def began(self, now: float) -> None:
        """Note that a reading begins."""
        self._reading, self._wanted = True, False
        self._began = now

    def take(self, answer: ListAnswer, now: float) -> None:
        """Take what a reading brought."""
        read = None if answer is None else _parse(*answer)
        not_now = answer is None or _not_now(answer[0])
        if read is not None or not not_now:
            self._read = read
        self._not_yet = not_now and self._read is None
        self._join()
        self._reading = False
        self._ended = now
        self._slow = now - self._began > WAIT_SECONDS
        if read is not None:
            self._logged = False
        elif self._read is not None or (answer is not None and answer[0] != _STARTING):
            self._tell("no answer" if answer is None else f"{answer[0]} without a list of models")

    def _join(self) -> None:
        self._entries = {**self._announced, **(self._read or {})} if self._announced or self._read is not None else None

    def _tell(self, came: str) -> None:
        """Log that an answer held no list; once, until a list comes."""
        if not self._logged:
            done = "the previous list is used" if self._read is not None else "requests for any model are sent"
            fields = {"upstream": self._upstream, "why": f"GET /v1/models: {came}"}
            log.warning("the list of models cannot be read; %s", done, extra={"fields": fields})
        self._logged = True


def _not_now(status: int) -> bool:
    return status >= 500 or status in _NOT_NOW


def _parse(status: int, body: bytes) -> Mapping[str, dict[str, Any]] | None:
    """Parse `{"data": [{"id": ...}, ...]}`; None for anything else. An Ollama without models sends null as its list."""
    if status != 200:
        return None
    try:
        document = loads(body)
    except ValueError:
        return None
    data = document.get("data", 0) if isinstance(document, dict) else 0
    if data is None:
        return {}
    if not isinstance(data, list):
        return None
    return {entry["id"]: entry for entry in data if isinstance(entry, dict) and _is_name(entry.get("id"))}


def _is_name(id: object) -> bool:
    """Whether clients can name a model by this id: a lone surrogate cannot be sent as UTF-8."""
    return isinstance(id, str) and id.encode("utf-8", "replace").decode() == id
