"""Merge: turns what the legs of one request send into what the client reads.

One class for both dialects, for streams and for whole answers. A stream is written as it comes; a whole answer is
folded from the same pieces at the end. No IO, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter

from nproxy.choices.bodies import as_chunks, in_place
from nproxy.choices.commands import Anomaly, ChoiceFinished, Command, Spent
from nproxy.choices.fold import folded
from nproxy.choices.leg_output import Choice, LegOutput
from nproxy.choices.leg_outputs import LegOutputs
from nproxy.choices.reading import in_band, read_answer, read_chunk, read_message
from nproxy.choices.records import SentRecord
from nproxy.choices.settings import Names
from nproxy.openai.chunks import EMPTY_VALUES, UpstreamChoice, UpstreamChunk, is_done, is_null
from nproxy.openai.dialect import CHAT
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON, dumps, loads
from nproxy.openai.places import USAGE, Values, with_values
from nproxy.openai.requests import Request
from nproxy.openai.tools import must_call
from nproxy.openai.usage import Usage, parse_usage
from nproxy.openai.wire import DONE_FRAME, Wire

PADDING = "obfuscation"
"""A key of single chunks that pads them to equal length (OpenAI). A whole answer has none."""

_LONG_BODY = 32 << 10
"""Bytes of an answer from which its choices are written while others are awaited, and not all together at the end.

Parsed, they take ten times as much memory, and the garbage collector goes through every token of them.
"""

LOST = "error"
"""The finish_reason of a choice that was lost while its siblings were not."""


class Merge:
    """Merges the legs of one request.

    Each leg is introduced with `legs.add`; then `chunk` and `body` take what it sent, and `end` says that it is over.
    `close` returns the last bytes once every choice is finished. `frames` collects what the client of a stream is to
    read next, `notes` commands for metrics and lessons; the caller empties both. What a choice said is written where it
    is noted, so a fault in another choice of the same chunk cannot lose it.

    record, counts_all, relayed: see LegOutputs. n: choices per prompt that the legs bring; None if as many as the
    client asked for. logprobs: whether a whole answer shows log probabilities.
    """

    _rates = False
    """Whether choices are rated by their log probabilities, which are then read."""

    def __init__(
        self,
        request: Request,
        names: Names,
        record: Callable[[], SentRecord] | None = None,
        n: int | None = None,
        logprobs: bool = True,
        counts_all: bool = False,
        relayed: bool = False,
    ) -> None:
        self.frames: list[bytes] = []
        self.notes: list[Command] = []
        self._request = request
        self._chat = request.dialect is CHAT
        with_usage = request.stream and request.include_usage
        must = request.stream and must_call(request.body.fields)
        self._wire = Wire(request.dialect, *names, None, with_usage, must)
        self._logprobs = logprobs
        width = request.n if n is None else n
        self.legs = legs = LegOutputs(request, width, record, counts_all=counts_all, relayed=relayed)
        self.outputs, self._choices, self._bringers, self._tally = legs.outputs, legs.choices, legs.bringers, legs.tally
        self._opened = False  # the prelude has been written
        # else every chunk is parsed: text offsets need every text
        self._teaches = self._chat or not request.logprobs_asked

    def chunk(self, number: int, data: bytes, name: str = "") -> bool:
        """Take one event of a leg, and write the client's frames for it. Returns False if it does not count as one.

        Raises LegFault for an in-band error and for what cannot be parsed; the leg is then over.
        """
        output = self.outputs[number]
        if name != "error" and output.rewriter is not None:
            frame = output.rewriter.swap(data)
            if frame is None and output.rewriter.counts:
                frame = output.rewriter.swap_counted(data, partial(self._count, output))
            if frame is not None:
                self.frames.append(frame)
                output.pieces += 1
                return True
        if output.done:
            return False
        if is_done(data):
            output.done = True
            output.forget()
            return False
        if name == "error":
            raise in_band(data)
        if is_null(data):
            return False
        data = data.replace(b"\n", b" ")  # an event is one line; JSON tokens may be separated by blanks
        chunk = read_chunk(data, self._request.dialect)
        output.spoke = output.streamed = True
        self._take(output, data, chunk)
        return True

    def chunks(self, number: int, data: bytes) -> bytes:
        """Take those of several events, from the front, that only continue a text or a call's arguments, and write the
        frames for them.

        Returns the events behind them, which are for `chunk`.
        """
        output = self.outputs[number]
        if output.rewriter is None:
            return data
        written, pieces, rest = output.rewriter.swap_all(data)
        if written:
            self.frames.append(written)
            output.pieces += pieces
        return rest

    def body(self, number: int, body: bytes) -> None:
        """Take the whole body of a leg that did not answer with events; otherwise like `chunk`."""
        output = self.outputs[number]
        answer = read_answer(body, self._request.dialect, in_part=not self._request.stream and not self._rates)
        output.spoke = output.done = True
        output.long = len(body) >= _LONG_BODY
        answer = in_place(answer, len(output.choices))
        if self._request.stream:
            for piece in as_chunks(answer, self._request.dialect):
                self._take(output, b"", piece)
        else:
            self._take(output, b"", answer)
            for choice in output.choices:  # a whole body is complete, even if it names no reason
                if choice.began and not choice.finished:
                    self._finish(choice, None)
        self._keep(output, body, answer.came)

    def end(self, number: int) -> list[int]:
        """End the leg's answer: return the client indices that it was to bring and did not begin.

        Raises LegFault as `LegOutput.end` does, and if `best_of` cannot rate the choices.
        """
        output = self.outputs[number]
        missing = output.end()
        self._rate(output)
        if output.long and not self._request.stream and not all(choice.finished for choice in self._choices):
            for choice in output.choices:
                if choice.finished:
                    self._written(choice)
        return missing

    @property
    def delivered(self) -> int:
        """How many of the client's choices are finished."""
        return sum(len(self._shown_as(choice)) for choice in self._choices if choice.finished)

    def close(self) -> bytes:
        """Every choice is finished or lost: return the end of the stream, or the whole answer.

        A whole answer leaves out the choices that are lost. In a stream they finish here, with `error` as their reason
        and the error beside it, because their role has been written and clients wait for a reason.
        """
        usage = self._usage()
        for choice in self._choices:
            if choice.lost is not None and not choice.counted:
                self.notes += [ChoiceFinished(index, LOST) for index in self._shown_as(choice)]
        if not self._request.stream:
            return self._answer(usage)
        lost = b"".join(self._lost(choice, choice.lost) for choice in self._choices if choice.lost is not None)
        tail = self._usage_tail(usage) if usage is not None and self._request.include_usage else b""
        return lost + tail + DONE_FRAME

    def spent(self) -> Spent:
        """Return the tokens of this request, for the metrics."""
        return self._tally.spent(self._client_usage)

    # ---- one parsed chunk

    def _take(self, output: LegOutput, data: bytes, chunk: UpstreamChunk) -> None:
        """Take a chunk's usage, fingerprint and choices, and write the frames."""
        if chunk.fingerprint is not None:
            self._note_fingerprint(output, chunk.fingerprint, with_choice=bool(chunk.choices))
        if chunk.extra and not self._request.stream:
            output.top.update(
                (key, value)
                for key, value in chunk.extra.items()
                if key != PADDING and (value is not None or key not in output.top)
            )
        if chunk.usage is not None:
            output.reported.note(chunk.usage, () if output.done else [piece.index for piece in chunk.choices])
        if self._request.stream and (prelude := self._prelude(data)):
            self.frames.append(prelude)
        for position, piece in enumerate(chunk.choices):
            choice = self._addressed(output, piece)
            if choice is not None and (written := self._take_piece(output, data, chunk, position, choice)):
                self.frames.append(written)
        if not chunk.choices and (written := self._without_choices(output, data, chunk)):
            self.frames.append(written)

    def _addressed(self, output: LegOutput, piece: UpstreamChoice) -> Choice | None:
        """Return the client's choice that a piece belongs to, or None if nothing more of it is wanted."""
        index = piece.index
        if not 0 <= index < len(output.choices):
            if not output.surplus:
                output.surplus = True
                self.notes.append(Anomaly("surplus_choice"))
            return None
        choice = output.choices[index]
        if self._bringers[choice.index] is not output or (choice.finished and not self._goes_on(output, choice, piece)):
            return None
        return choice

    def _goes_on(self, output: LegOutput, choice: Choice, piece: UpstreamChoice) -> bool:
        """Whether a piece behind a choice's finish still belongs to it: some servers send a finish with every piece.

        A whole answer takes it. In a stream, nothing may follow the finish, which went out at once. A further call of a
        leg says again what another one has finished.
        """
        if output.again or all(value in EMPTY_VALUES for key, value in piece.delta.items() if key != "role"):
            return False
        if self._request.stream and not choice.overrun:
            choice.overrun = True
            self.notes.append(Anomaly("text_after_finish"))
        return not self._request.stream

    def _take_piece(self, output: LegOutput, data: bytes, chunk: UpstreamChunk, position: int, choice: Choice) -> bytes:
        """Take what one choice says in a chunk; return the frames."""
        piece = chunk.choices[position]
        if (
            "message" in piece.extra
            and self._chat
            and chunk.came["choices"][position].get("delta") is None
            and (choice.in_messages or not choice.began)  # else it repeats all that was said, as MiniMax's last one
        ):
            choice.in_messages, piece = True, read_message(piece)
        if data or self._request.stream:  # a whole body for a whole answer is kept as it is
            if not piece.bare:
                output.generated = True
                output.pieces += 1 if data else 0
            mended = choice.mended(piece, chat=self._chat, all_seen=not self._teaches)
            if choice.tools is not None and choice.tools.changed:
                choice.tools.changed = False
                output.forget(piece.index)  # the learned frames may be wrong now
            if mended is None:
                return b""
            piece = mended
        if choice.sent is not None:
            choice.sent.note(piece)
        choice.began = True
        if piece.finish_reason is not None:
            self._finish(choice, piece.finish_reason)
            output.forget(piece.index)
        if not self._request.stream:
            choice.pieces.append(piece)
            return b""
        return self._frame(output, data, chunk, position, choice, piece)

    def _finish(self, choice: Choice, reason: str | None) -> None:
        again, choice.finished = choice.finished, True
        choice.finish_reason = reason
        if choice.counted or again:
            return
        for index in self._shown_as(choice):
            self.notes.append(ChoiceFinished(index, reason or "none"))

    def _note_fingerprint(self, output: LegOutput, fingerprint: str, *, with_choice: bool) -> None:
        """Keep the leg's fingerprint. In a stream, the first one that comes with a choice is on all later frames."""
        if output.fingerprint is None:
            output.fingerprint = fingerprint
        if self._request.stream and with_choice and self._wire.fingerprint is None:
            self._wire = self._wire.with_fingerprint(fingerprint)
            for other in self.outputs.values():
                other.forget()  # the learned frames lack the fingerprint

    def _usage(self) -> Usage | None:
        """Return the usage that the client is told. Notes an anomaly if legs counted the same prompt differently."""
        usage, prompts_differ = self._tally.settled()
        if prompts_differ:
            self.notes.append(Anomaly("prompt_tokens_differ"))
        return None if usage is None else self._client_usage(usage)

    def _running(self, output: LegOutput) -> Usage | None:
        """Return the total so far if the client asked for continuous usage. It does not fall while calls repeat.

        output: of the leg that has reported its usage.
        """
        if not self._request.continuous_usage:
            return None
        total = self._tally.running(output)
        return None if total is None else self._client_usage(total)

    # ---- hooks for BestOf and Copies: which choices the client sees, and what usage. Here: as the legs brought them.

    def _shown_as(self, choice: Choice) -> Sequence[int]:
        """Return the client's indices for a choice."""
        return (choice.index,)

    def _client_usage(self, usage: Usage) -> Usage:
        """Return the usage that the client is told, from the usage of all legs."""
        return usage

    def _rate(self, output: LegOutput) -> None:
        """Look at the choices of a leg's answer, which is over. May raise LegFault."""

    # ---- hooks for Relay: how frames and answers are written

    def _keep(self, output: LegOutput, body: bytes, came: dict[str, JSON]) -> None:
        """Keep a whole body, and what it was parsed to, if the answer is written from it."""

    def _prelude(self, data: bytes) -> bytes:
        """Return the role chunks of all choices, which come before anything else."""
        if self._opened or not self._request.stream:
            return b""
        self._opened = True
        return self._wire.prelude(range(self._request.choices))

    def _frame(
        self, output: LegOutput, data: bytes, chunk: UpstreamChunk, position: int, choice: Choice, piece: UpstreamChoice
    ) -> bytes:
        """Return the client's frame for what a choice said."""
        if piece.bare and all(value is None for value in chunk.extra.values()):
            return b""  # nothing, or a role, which was in the prelude
        total = self._running(output) if chunk.usage is not None else None
        usage = None if total is None else total.to_json()
        indices, top = self._shown_as(choice), chunk.extra
        if data and self._teaches:

            def render(values: Values, _: bytes) -> bytes:
                counted = usage if usage is None else values.get(USAGE, usage)
                return self._rendered(indices, counted, *with_values(piece, top, values))

            output.taught(self._request.dialect).learn(data, chunk, render)
        return self._rendered(indices, usage, piece, top)

    def _rendered(self, indices: Sequence[int], usage: JSON, piece: UpstreamChoice, top: Mapping[str, JSON]) -> bytes:
        """Return the frames for what a choice said, one for each of the client's indices."""
        frames = b""
        for index in indices:
            frames += self._wire.chunk(
                index,
                piece.delta,
                finish_reason=piece.finish_reason,
                logprobs=piece.logprobs,
                extra=piece.extra,
                usage=usage,
                top=top,
            )
        return frames

    def _count(self, output: LegOutput, index: int, reported: bytes) -> bytes | None:
        """Count the usage of an unparsed chunk with one choice, as `_take` does.

        Returns the total so far as the client is told it, None if the chunk must be parsed.
        """
        try:
            usage = parse_usage(loads(reported))
        except ValueError:
            return None
        if usage is None:
            return None
        output.reported.note(usage, [index])
        total = self._running(output)
        return b"null" if total is None else dumps(total.to_json())

    def _lost(self, choice: Choice, error: ApiError) -> bytes:
        """Return the finish of a choice that is lost."""
        nothing = self._request.dialect.empty_delta
        why = {"error": loads(error.envelope())["error"]}
        return self._role(choice) + b"".join(
            self._wire.chunk(index, nothing, finish_reason=LOST, extra=why) for index in self._shown_as(choice)
        )

    def _role(self, choice: Choice) -> bytes:
        """Return the role of a choice, if it has not been written yet."""
        return self._prelude(b"")

    def _without_choices(self, output: LegOutput, data: bytes, chunk: UpstreamChunk) -> bytes:
        """Return the client's frame for a chunk without choices. Usage is written at the end.

        Unknown keys are written once: those of the first call of the leg that brings the first choice.
        """
        if chunk.usage is not None:
            output.beside_usage = chunk.extra
            return b""
        speaks = self._request.stream and output is self._bringers[0] and not output.again
        nothing = all(value is None for value in chunk.extra.values())
        return self._wire.beside(chunk.extra) if speaks and not nothing else b""

    def _usage_tail(self, usage: Usage) -> bytes:
        fingerprints = (output.fingerprint for output in self.outputs.values() if output.fingerprint is not None)
        wire = self._wire.with_fingerprint(self._wire.fingerprint or next(fingerprints, None))
        first = self._bringers[0]
        beside = None if first is None else first.beside_usage
        return wire.usage_tail(usage, beside or {})

    def _answer(self, usage: Usage | None) -> bytes:
        """Return the whole answer. Unknown keys and the fingerprint come from the leg that brings its first choice."""
        finished = [choice for choice in self._choices if choice.finished]
        shown = sorted(((index, choice) for choice in finished for index in self._shown_as(choice)), key=itemgetter(0))
        choices = [(index, self._written(choice)) for index, choice in shown]
        first = self._bringers[shown[0][1].index]
        if first is None:
            return self._wire.answer(choices, usage)
        return self._wire.with_fingerprint(first.fingerprint).answer(choices, usage, first.top)

    def _written(self, choice: Choice) -> bytes:
        """Return a finished choice as the whole answer shows it. Its pieces are no longer needed then."""
        if choice.written is None:
            bringer = self._bringers[choice.index]
            streamed = bringer is not None and bringer.streamed
            delta, logprobs, extra = folded(choice.pieces, streamed=streamed)
            if streamed and self._chat and not any(delta.values()):
                delta["content"] = ""  # nothing was said: llama.cpp's stream has null then, its whole answer this
            choice.written = self._wire.choice(
                delta,
                finish_reason=choice.finish_reason,
                logprobs=logprobs if self._logprobs else None,
                extra=extra,
            )
            choice.pieces.clear()
        return choice.written
