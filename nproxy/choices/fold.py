"""Folding: the deltas of one choice, and what comes beside them, become the choice of a whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter

from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.unread import Unread

SENT_ONCE = frozenset({"id", "type", "role"})  # names, not pieces of text


def fold(pieces: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Build a message from its deltas, with keys in the order of their first appearance.

    Texts are joined, lists concatenated, objects folded; texts among lists become parts of type `text`, as Mistral's
    models of reasoning answer. Of anything else the last value counts. Tool calls are built by their index, which the
    message does not contain. A single piece is the whole, unchanged.
    """
    return _fold(pieces, "".join)


def latest(pieces: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Fold what comes beside deltas. There strings are names and not pieces of text, so the last one counts."""
    return _fold(pieces, itemgetter(-1))


def folded(
    pieces: Sequence[UpstreamChoice], *, streamed: bool = False
) -> tuple[dict[str, JSON], JSON, dict[str, JSON]]:
    """Return a choice of the whole answer from its pieces: its message or text, log probabilities, and other keys.

    streamed: they are deltas, also if there is only one.
    """
    if len(pieces) == 1 and not streamed:
        (piece,) = pieces
        rated = piece.logprobs if isinstance(piece.logprobs, (dict, Unread)) else None
        return {**piece.delta}, rated, {**piece.extra}
    spoken = [piece for piece in pieces if piece.role is None or not piece.bare] or pieces
    logprobs = [piece.logprobs for piece in spoken if isinstance(piece.logprobs, dict)]
    delta, extra = fold([piece.delta for piece in spoken]), latest([piece.extra for piece in spoken])
    if len(spoken) == 1 and streamed and isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = _calls(calls)
    return delta, latest(logprobs) if logprobs else None, extra


_Join = Callable[[list[str]], str]


def _fold(pieces: Sequence[Mapping[str, JSON]], join: _Join) -> dict[str, JSON]:
    if len(pieces) == 1:
        return dict(pieces[0])
    values: dict[str, list[JSON]] = {}
    for piece in pieces:
        for key, value in piece.items():
            values.setdefault(key, []).append(value)
    return {key: _whole(key, [value for value in found if value is not None], join) for key, found in values.items()}


def _whole(key: str, values: Sequence[JSON], join: _Join) -> JSON:
    if not values:
        return None
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        return next(filter(None, texts), "") if key in SENT_ONCE else join(texts)
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values):
        return _fold(objects, join)
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values):
        strung = list(chain.from_iterable(lists))
        return _calls(strung) if key == "tool_calls" else strung
    if len(lists) + len(texts) == len(values):
        return _parts(values)
    return values[-1]


def _parts(values: Sequence[JSON]) -> JSON:
    """Return the parts of lists, and texts beside them as further parts; texts that follow one another are joined."""
    parts: list[JSON] = []
    text: dict[str, JSON] | None = None  # the last part, if it was made here
    for value in values:
        if isinstance(value, list):
            if value:
                parts += value
                text = None
        elif isinstance(value, str) and value:
            if text is None:
                text = {"type": "text", "text": ""}
                parts.append(text)
            text["text"] = f"{text['text']}{value}"
    return parts


def _calls(deltas: Sequence[JSON]) -> list[JSON]:
    """Return tool calls built from their deltas, in the order of their indices."""
    by_index: dict[int, list[dict[str, JSON]]] = {}
    for delta in deltas:
        if isinstance(delta, dict) and isinstance(index := delta.get("index"), int):
            by_index.setdefault(index, []).append({key: value for key, value in delta.items() if key != "index"})
    return [fold(by_index[index]) for index in sorted(by_index)]
