"""Relay: one leg whose bytes pass through, watched event by event by the same Merge.

Only the writing differs. An event goes to the client as it came unless a rule requires a change. Then the event is
written anew with its keys in their order, and only what the rule names is changed. If the upstream's wire is exact, the
output is what Merge would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nproxy.choices.leg_output import Choice, LegOutput
from nproxy.choices.merge import Merge
from nproxy.choices.records import SentRecord
from nproxy.choices.settings import Names
from nproxy.openai.chunks import UpstreamChoice, UpstreamChunk
from nproxy.openai.jsonvalue import JSON, dumps, is_json, loads
from nproxy.openai.places import NAMES, USAGE, Values, with_value
from nproxy.openai.requests import Request
from nproxy.openai.tools import CALLS
from nproxy.openai.usage import Usage
from nproxy.openai.wire import Wire, event

_NULL_USAGE = b',"usage":null'
_MENDED = (*CALLS, "content")
"""The keys of a delta, or message, whose values may differ from what came."""


@dataclass(frozen=True, slots=True)
class _Patch:
    """A change to an event's bytes. What it searches for cannot be inside a JSON string, where quotes are escaped."""

    model: tuple[bytes, bytes] | None = None
    add_usage: bool = False
    drop_usage: bool = False

    def __call__(self, data: bytes) -> bytes:
        if self.model is not None:
            data = data.replace(*self.model, 1)
        if self.add_usage:
            return data[:-1] + _NULL_USAGE + b"}"
        return data.replace(_NULL_USAGE, b"", 1) if self.drop_usage else data


_NONE, _ADD_USAGE = _Patch(), _Patch(add_usage=True)


class Relay(Merge):
    """Relays one leg. `shown`: the model name to show instead of the upstream's own; None to keep that.

    exact: usage beside a choice is that of its whole call, as from the built-in engine; other servers' is the choice's.

    A call that resumes another one has names (id, created) of its own, and may begin in the middle of a chunk. Calls
    for one prompt each also have names of their own. From then on, frames are written as Merge writes them, under the
    first call's names.
    """

    def __init__(
        self,
        request: Request,
        names: Names,
        shown: str | None = None,
        exact: bool = False,
        record: Callable[[], SentRecord] | None = None,
    ) -> None:
        self._counts_all = exact or request.choices == 1  # usage beside a choice is that of its whole call
        super().__init__(request, names, record, counts_all=self._counts_all, relayed=True)
        self._shown = shown
        self._named = False  # id, created and model have been taken from the upstream
        self._roles: set[int] = set()  # choices whose role has been written
        self._tails: list[bytes] = []
        self._body: bytes | None = None

    # ---- writing

    def _keep(self, output: LegOutput, body: bytes, came: dict[str, JSON]) -> None:
        if self._request.stream:
            return  # it has been written as frames, under names that stay
        if output.surplus or (output.whole and not _all_there(came, output.choices)):
            self._take_names(came)  # it is written anew: without surplus choices, in order, under the right indices
        elif len(self.outputs) == 1 and not self.legs.several_names:
            marked = body[-1:] != b"}" and body.rstrip().endswith(b"]")  # `[DONE]` is behind it
            if self._shown is not None:
                body = dumps(came | {"model": self._shown})
            elif marked or not is_json(body):
                body = dumps(came)
            self._body = body

    def _prelude(self, data: bytes) -> bytes:
        if data or self._opened or not self._request.stream:
            return b""
        self._opened = True
        return self._wire.prelude([index for index in range(self._request.choices) if index not in self._roles])

    def _frame(
        self, output: LegOutput, data: bytes, chunk: UpstreamChunk, position: int, choice: Choice, piece: UpstreamChoice
    ) -> bytes:
        if not data or not self._request.stream:
            return super()._frame(output, data, chunk, position, choice, piece)
        if self.legs.several_names:
            return self._role(choice) + super()._frame(output, data, chunk, position, choice, piece)
        wanted = self._wanted(output, chunk, chunk.came["choices"][position], choice, piece)
        written = self._role_first(choice, piece)
        if wanted is None:
            return written
        patch = self._patch(data, chunk.came, wanted)

        def render(values: Values, data: bytes) -> bytes:
            if patch is not None and not any(name in values for name in NAMES):
                return event(patch(data))
            changed = wanted
            for place, value in values.items():
                if place not in NAMES and (place != USAGE or changed.get("usage")):
                    changed = with_value(changed, place, value)
            return event(dumps(changed))

        if self._teaches:
            output.taught(self._request.dialect).learn(data, chunk, render)
        return written + event(dumps(wanted) if patch is None else patch(data))

    def _count(self, output: LegOutput, index: int, reported: bytes) -> bytes | None:
        counted = super()._count(output, index, reported)
        return reported if counted is not None and self._is_total else counted

    @property
    def _is_total(self) -> bool:
        """Whether the usage of a chunk is the total that a client is told who asked for one with each chunk."""
        return self._counts_all and len(self.outputs) == 1 and not self.legs.several_names

    def _without_choices(self, output: LegOutput, data: bytes, chunk: UpstreamChunk) -> bytes:
        if not data or not self._request.stream or (output.again and chunk.usage is None):
            return super()._without_choices(output, data, chunk)
        if chunk.usage is not None:
            if len(self._tails) < 2:  # of several, none is passed on as it came
                self._tails.append(data)
            return b""
        return _as_it_came(data, chunk.came, self._renamed(chunk.came))

    def _usage_tail(self, usage: Usage) -> bytes:
        if self.legs.several_names or len(self._tails) != 1 or len(self.outputs) != 1:
            return super()._usage_tail(usage)
        came = loads(self._tails[0])
        return _as_it_came(self._tails[0], came, self._renamed(came) | {"usage": came["usage"]})

    def _answer(self, usage: Usage | None) -> bytes:
        if self._body is None or len(self.outputs) != 1:
            return super()._answer(usage)
        return self._body

    # ---- changes that a rule requires

    def _role_first(self, choice: Choice, piece: UpstreamChoice) -> bytes:
        """Return the role chunk of a choice whose first chunk has no role."""
        return b"" if piece.role is not None else self._role(choice)

    def _role(self, choice: Choice) -> bytes:
        if not self._chat or self._opened or choice.index in self._roles:
            return b""
        self._roles.add(choice.index)
        return self._wire.prelude([choice.index])

    def _wanted(
        self, output: LegOutput, chunk: UpstreamChunk, raw: dict[str, Any], choice: Choice, piece: UpstreamChoice
    ) -> dict[str, Any] | None:
        """Return the event as the client must see it, with one choice; None if nothing is left of it."""
        came = chunk.came
        wanted = self._renamed(came)
        wanted["choices"] = [kept := dict(raw)]
        if raw.get("index") != choice.index:
            kept["index"] = choice.index
        if piece.logprobs != raw.get("logprobs"):
            kept["logprobs"] = piece.logprobs
        if piece.finish_reason is None and raw.get("finish_reason") is not None:
            kept["finish_reason"] = None
        if chunk.usage is not None and self._request.continuous_usage:
            total = self._running(output)
            if self._is_total:
                wanted["usage"] = came.get("usage") or chunk.usage.to_json()  # it is the total already
            elif total is not None:
                wanted["usage"] = total.to_json()
        if not self._chat:
            return wanted
        if not isinstance(raw.get("delta"), dict):
            if raw.get("delta") is None:
                kept["delta"] = {**piece.delta}  # clients' libraries read its keys
                if "message" not in piece.extra:
                    kept.pop("message", None)
            return wanted
        kept["delta"] = delta = raw["delta"] | {key: piece.delta[key] for key in _MENDED if key in piece.delta}
        repeated = piece.role is not None and choice.index in self._roles
        if "role" in delta and (repeated or piece.role is None):
            del delta["role"]
            if piece.bare and all(value is None for value in chunk.extra.values()):
                return None
        if piece.role is not None:
            self._roles.add(choice.index)
        return wanted

    def _renamed(self, came: dict[str, JSON]) -> dict[str, JSON]:
        """Return the event with the stream's one id, created and model, and with `usage` as the client asked for it."""
        if not self._named:
            self._take_names(came)
        names: dict[str, JSON] = {"id": self._wire.id, "object": self._wire.dialect.chunk_object}
        names |= {"created": self._wire.created, "model": self._wire.model}
        wanted = came | names
        if came.get("choices") is None:
            wanted["choices"] = []
        if self._request.include_usage:
            wanted["usage"] = None
        else:
            wanted.pop("usage", None)
        return wanted

    def _take_names(self, came: dict[str, JSON]) -> None:
        """Use the upstream's own id, created and model for frames that are written here.

        Those of the first event count for the whole stream, but not empty ones as in Azure's results of prompt filters.
        """
        self._named = True
        id, created, model = came.get("id"), came.get("created"), self._shown or came.get("model")
        wire = self._wire
        self._wire = Wire(
            wire.dialect,
            id if isinstance(id, str) and id else wire.id,
            created if isinstance(created, int) and created else wire.created,
            model if isinstance(model, str) and model else wire.model,
            wire.fingerprint,
            wire.include_usage,
            wire.calls,
        )

    def _patch(self, data: bytes, came: dict[str, Any], wanted: dict[str, Any]) -> _Patch | None:
        """Return the patch that turns the bytes into `wanted`; None if the event must be written anew."""
        if not is_json(data):
            return None
        if wanted == came:
            return _NONE
        if self._shown is None and "usage" not in came and data.endswith(b"}"):
            # one more member at the end needs no check
            return _ADD_USAGE if wanted == {**came, "usage": None} else None
        model = None
        if self._shown is not None and (sent := came.get("model")) is not None:
            model = (b'"model":' + dumps(sent), b'"model":' + dumps(self._shown))
        asked, reported = self._request.include_usage, "usage" in came
        patch = _Patch(model, add_usage=asked and not reported, drop_usage=reported and not asked)
        return patch if _says(patch(data), wanted) else None


def _all_there(came: dict[str, Any], choices: Sequence[Choice]) -> bool:
    """Whether a whole answer has these choices, in their order and with indices that say so, and none was mended."""
    at = 0
    for raw in came["choices"]:
        if raw.get("index") != at:
            return False
        if (message := raw.get("message")) and (pieces := choices[at].pieces):
            said = pieces[-1].delta
            for key in _MENDED:
                if key in said and said[key] is not message[key]:
                    return False
        at += 1
    return at == len(choices)


def _as_it_came(data: bytes, came: dict[str, JSON], wanted: dict[str, JSON]) -> bytes:
    return event(data if wanted == came and is_json(data) else dumps(wanted))


def _says(data: bytes, wanted: dict[str, Any]) -> bool:
    try:
        return bool(loads(data) == wanted)
    except ValueError:  # the patch does not fit these bytes
        return False
