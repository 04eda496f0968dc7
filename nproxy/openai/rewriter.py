"""Byte rewriting: turns usual chunks of a stream into the client's without parsing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nproxy.openai.chunks import EMPTY_VALUES, UpstreamChoice, UpstreamChunk, parse_chunk
from nproxy.openai.dialect import CHAT, Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.places import Place, changing, find_text, may_be_changed, string_rest, value_in
from nproxy.openai.sse import BETWEEN
from nproxy.openai.template_making import Cut, Render, cut, make
from nproxy.openai.templates import Count, Template, special, text_said
from nproxy.openai.tools import CALLS, place_of_arguments

_MOST_CHANNELS = 1024
_MOST_MARKERS = 4
_MOST_ALIKE = 32
_LONGEST = 1 << 15
"""Limits of what one leg may teach: memory, and the time of a search. Chunks beyond them take the slow path."""

_PATIENCE = 16
"""After so many chunks that taught nothing, only two of so many are looked at. So many templates are made."""

_Channel = tuple[int, Place]
"""A choice's upstream index, and the place of one of its strings."""


class _Seen(NamedTuple):
    """The last chunk of a channel that was parsed."""

    data: bytes
    span: tuple[int, int]
    """Where its text is."""
    in_row: int
    """How many there were that taught nothing, one after the other."""
    made: int
    """How many templates were made before it."""


class Rewriter:
    """Rewrites the usual chunks of one leg as bytes, without parsing them.

    Most chunks of a choice differ in one string only, and in values that nothing depends on. From fully parsed chunks
    the rewriter learns the bytes around these, and what the client gets around them. A later chunk with exactly the
    same surroundings, and values that are valid, becomes the client's by swapping them.

    Its output equals what parsing and writing would give, but that values beside the text stay as they came: their
    blanks, and the form of their numbers. One object per leg:

        frame = rewriter.swap(data)                       # bytes of the client's whole frame; or swap_all, for several
        if frame is None: chunk = parse_chunk(data, ...)  # the slow path; then, for a chunk that was written
            rewriter.learn(data, chunk, render)           # as plain frames, teach it

    If it `counts`, some chunks have a usage, which `swap_counted` takes. After a choice's finish call `forget(index)`,
    so that stray chunks take the slow path and are dropped; and after a chunk that says something new of a tool call,
    since the next ones may be mended otherwise.
    """

    __slots__ = (
        "_by_turns",
        "_dialect",
        "_hopeless",
        "_latest",
        "_made",
        "_markers",
        "_mixed",
        "_seen",
        "_templates",
        "counts",
    )

    def __init__(self, dialect: Dialect) -> None:
        self.counts = False
        self._dialect = dialect
        self._markers: list[bytes] = []  # what ends the bytes before the first value, such as `"content":"`
        self._templates: dict[tuple[bytes, bytes], Template] = {}  # of a text alone: by the bytes before and behind it
        self._mixed: dict[bytes, list[Template]] = {}  # of several values: by the bytes before the first
        self._latest: Template | None = None  # the one that matched last; the only one of a leg of one choice
        self._seen: dict[_Channel, _Seen] = {}
        self._made: dict[_Channel, Template] = {}
        self._hopeless: set[_Channel] = set()  # no template can be made
        self._by_turns = False  # events that come together belong to several choices

    def swap(self, data: bytes) -> bytes | None:
        """Return the client's frame, or None if this chunk must be parsed."""
        template = self._latest
        if template is None or data != template.before + (between := data[template.slot]) + template.behind:
            template = self._find_template(data)
            if template is None:
                return None
            self._latest = template
            between = data[template.slot]
        if template.mixture is not None:
            return self._swap_mixed(template, data, None) if template.mixture.usage is None else None
        if not between or special(between) is not None or not between.isascii():
            said = text_said(between, template.kept)
            if said is None:
                return None
            between = said
        return template.client_before + between + template.client_behind

    def swap_counted(self, data: bytes, count: Count) -> bytes | None:
        """Return the client's frame of a chunk that has a usage. count: takes that, and returns the client's.

        It is not kept, because it belongs to an owner of the rewriter.
        """
        template = self._latest
        if template is None or not template.fits(data):
            self._latest = template = self._find_template(data)
        return None if template is None else self._swap_mixed(template, data, count)

    def _swap_mixed(self, template: Template, data: bytes, count: Count | None) -> bytes | None:
        """Do the same with a template of several values, or with another one that has the same ends."""
        said = template.said(data[template.slot], count)
        if said is None:
            other = self._find_template(data)
            if other is None or other is template or (said := other.said(data[other.slot], count)) is None:
                return None
            self._latest = template = other
        return template.client_before + said + template.client_behind

    def swap_all(self, data: bytes) -> tuple[bytes, int, bytes]:
        """Swap several events, whose data is joined by `BETWEEN`, from the front.

        Returns the frames of these, their number, and the events behind them: from the first that must be parsed, or if
        they are all of one choice, from one that another template fits. Of the events that one template fits, all are
        swapped or none.
        """
        if self._by_turns:
            return self._one_by_one(data)
        pieces, rest = self._in_front(data)
        template = self._latest
        said = self._all_said(template, pieces) if template is not None and pieces else None
        if template is None or said is None:
            return b"", 0, data
        if rest and len(said) == 1 and len({index for index, _ in self._made}) > 1:
            self._by_turns = True  # the choices of a leg send their chunks in turns
        return template.client_before + template.client_joint.join(said) + template.client_behind, len(said), rest

    def _one_by_one(self, data: bytes) -> tuple[bytes, int, bytes]:
        """Swap events of several choices."""
        frames: list[bytes] = []
        events = data.split(BETWEEN)
        for event in events:
            frame = self.swap(event)
            if frame is None:
                break
            frames.append(frame)
        count = len(frames)
        return b"".join(frames), count, b"" if count == len(events) else BETWEEN.join(events[count:])

    def _in_front(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return what is in the slots of the events that one template fits, and the events behind them."""
        template = self._latest
        if template is None or not data.startswith(template.before):
            self._latest = template = self._find_template(data.partition(BETWEEN)[0])
            if template is None:
                return [], data
        if template.has_usage:  # each is counted when all that came before it has been written
            return [], data
        *pieces, last = data[len(template.before) :].split(template.joint)
        piece, found, rest = last.partition(template.behind + BETWEEN)
        if found or last.endswith(template.behind):
            pieces.append(piece if found else last[: -len(template.behind)])
        else:
            rest = template.before + last  # only its beginning matches
        return pieces, rest

    def _all_said(self, template: Template, pieces: list[bytes]) -> Sequence[bytes] | None:
        """Return what the client gets for what is in several slots; None if one of them must be parsed."""
        if template.mixture is None:
            together = b"".join(pieces)
            if special(together) is None and together.isascii() and all(pieces):
                return pieces
        all_said = []
        for piece in pieces:
            said = template.said(piece)
            if said is None:
                return None
            all_said.append(said)
        return all_said

    def _find_template(self, data: bytes) -> Template | None:
        for marker in self._markers:
            at = data.find(marker)
            if at < 0:
                continue
            start = at + len(marker)
            before = data[:start]
            if self._mixed:
                for template in self._mixed.get(before, ()):
                    if template.fits(data):
                        return template
            if (rest := string_rest(data, start)) is not None:
                found = self._templates.get((before, data[rest.end() - 1 :]))
                if found is not None:
                    return found
        return None

    def learn(self, data: bytes, chunk: UpstreamChunk, render: Render) -> None:
        """Learn from a chunk that was just parsed from `data`.

        render: must depend on its arguments only. Chunks that are not plain text or arguments (a finish, several
        choices or calls) teach nothing, so this may be called for every chunk. A template is made when two chunks of a
        choice had the same surroundings.
        """
        if len(chunk.choices) != 1 or len(data) > _LONGEST:
            return
        choice = chunk.choices[0]
        place = self._text_of(choice)
        if place is None:
            return
        channel = (choice.index, place)
        seen, made = self._seen.get(channel), self._made.get(channel)
        if channel in self._hopeless or (made is not None and made.fits(data)):
            return
        if seen is None and len(self._seen) + len(self._hopeless) >= _MOST_CHANNELS:
            return
        in_row, times_made = (1, 0) if seen is None else (seen.in_row + 1, seen.made)
        if seen is not None and in_row > _PATIENCE and in_row % _PATIENCE > 1:
            self._seen[channel] = seen._replace(in_row=in_row)
        elif (span := find_text(data, place[-1], self._said_in(choice, place))) is not None:
            self._seen[channel] = now = _Seen(data, span, in_row, times_made)
            if seen is not None:
                self._compare(channel, seen, now, chunk, render)

    def _compare(self, channel: _Channel, seen: _Seen, now: _Seen, chunk: UpstreamChunk, render: Render) -> None:
        """Make a template of two chunks if they have the same surroundings. chunk: what the later one was parsed to."""
        parts = self._alike(channel[1], seen, now, chunk)
        if parts is None:
            return  # more may change with every chunk: wait for a second one
        made = None
        if now.made < _PATIENCE:
            made = make(parts, channel[1], chunk, now.data, self._dialect, render)
        if made is not None and self._keep(channel, made):
            self._seen[channel] = _Seen(now.data, now.span, 0, now.made + 1)  # another may show that more changes
        else:
            del self._seen[channel]
            self._hopeless.add(channel)

    def _alike(self, place: Place, seen: _Seen, now: _Seen, chunk: UpstreamChunk) -> Cut | None:
        """Return how the later of two chunks is cut at what differs, None if they differ in more."""
        if chunk.usage is None:
            parts = cut(now.data, chunk, place, now.span, ())
            if parts == cut(seen.data, chunk, place, seen.span, ()):
                return parts
        before = parse_chunk(seen.data, self._dialect)
        differing = changing(chunk, before, self._dialect)
        changed = [other for other in differing if other != place and self._may_change(other)]
        parts = cut(now.data, chunk, place, now.span, changed)
        return parts if parts == cut(seen.data, before, place, seen.span, changed) else None

    def _text_of(self, choice: UpstreamChoice) -> Place | None:
        """Return the place of the text that such a choice carries, None if it carries anything else of importance."""
        if choice.finish_reason is not None:
            return None
        full = [key for key, value in choice.delta.items() if value not in EMPTY_VALUES]
        if len(full) == 1 and full[0] in CALLS:
            inner = place_of_arguments(choice.delta)
            return None if inner is None else ("choices", "delta", *inner)
        if not full or any(key in CALLS for key in full):
            return None
        texts = (key for key in full if isinstance(choice.delta[key], str))
        key = "content" if "content" in full else next(texts, full[0])
        if not isinstance(choice.delta[key], str) or may_be_changed(key) is None:
            return None
        return ("choices", "delta", key) if self._dialect is CHAT else ("choices", key)

    def _said_in(self, choice: UpstreamChoice, text: Place) -> JSON:
        said: JSON = value_in(choice.delta, text[2:] if self._dialect is CHAT else text[1:])
        return said

    def _may_change(self, place: Place) -> bool:
        """Whether a value beside the text may differ between chunks."""
        return may_be_changed(place[-1]) is not None

    def forget(self, index: int | None = None) -> None:
        """Drop what was learned for this upstream index, or everything, because what render would write has changed."""
        self._latest = None
        for channel in [channel for channel in self._seen if index in (None, channel[0])]:
            del self._seen[channel]
        for channel in [channel for channel in self._made if index in (None, channel[0])]:
            self._drop(channel)
        self._hopeless = {channel for channel in self._hopeless if index not in (None, channel[0])}

    def _keep(self, channel: _Channel, template: Template) -> bool:
        """Keep a template in the place of an earlier one of its channel; False if there are too many to search."""
        if template.marker not in self._markers:
            if len(self._markers) >= _MOST_MARKERS:
                return False
            self._markers.append(template.marker)
        self._drop(channel)
        if template.mixed:
            if len(self._mixed.get(template.before, ())) >= _MOST_ALIKE:
                return False
            self._mixed.setdefault(template.before, []).append(template)
        else:
            self._templates[template.before, template.behind] = template
        self._made[channel] = template
        self._latest = None
        self.counts |= template.has_usage
        return True

    def _drop(self, channel: _Channel) -> None:
        outdated = self._made.pop(channel, None)
        if outdated is None:
            return
        if outdated.mixed:
            alike = self._mixed[outdated.before]
            alike.remove(outdated)
            if not alike:
                del self._mixed[outdated.before]
        else:
            self._templates.pop((outdated.before, outdated.behind), None)


class ListeningRewriter(Rewriter):
    """A rewriter that reports each text that it passes on: as it was in the upstream's JSON, without its quotes.

    listen: returns the callback that takes the texts of an upstream index and a key. Texts of chunks that take the slow
    path, as all tool calls do, are not reported.
    """

    __slots__ = ("_heard", "_listen", "_listener")

    def __init__(self, dialect: Dialect, listen: Callable[[int, str], Callable[[bytes], None]]) -> None:
        super().__init__(dialect)
        self._listen = listen
        self._heard: Template | None = None  # the one that matched last,
        self._listener: Callable[[bytes], None] | None = None  # and what takes its texts

    def swap(self, data: bytes) -> bytes | None:
        """Like Rewriter.swap; what is swapped is reported."""
        return self._reported(Rewriter.swap(self, data), data)

    def swap_counted(self, data: bytes, count: Count) -> bytes | None:
        """Like Rewriter.swap_counted; what is swapped is reported."""
        return self._reported(super().swap_counted(data, count), data)

    def _reported(self, frame: bytes | None, data: bytes) -> bytes | None:
        """Return the frame, after its text has been reported. data: the chunk."""
        if frame is not None and (template := self._latest) is not None:
            self._tell(template, data[template.slot])
        return frame

    def _all_said(self, template: Template, pieces: list[bytes]) -> Sequence[bytes] | None:
        said = super()._all_said(template, pieces)
        if said is not None:
            for piece in pieces:
                self._tell(template, piece)
        return said

    def _tell(self, template: Template, between: bytes) -> None:
        if template is not self._heard or self._listener is None:
            self._heard, self._listener = template, self._listen(template.index, template.key)
        self._listener(template.text_of(between))

    def _text_of(self, choice: UpstreamChoice) -> Place | None:
        beside = (*choice.delta.values(), *choice.extra.values())
        if choice.logprobs is not None or any(isinstance(value, list) and value for value in beside):
            return None  # calls, and entries beside a text, must be seen each time
        if sum(value not in EMPTY_VALUES for value in choice.delta.values()) > 1:
            return None
        return super()._text_of(choice)

    def _may_change(self, place: Place) -> bool:
        return len(place) == 1 and super()._may_change(place)  # all that belongs to the choice must be seen
