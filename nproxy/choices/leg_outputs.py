"""What all legs of a request have brought, and which of them brings which choice now.

A leg that does not bring all of its choices ends in one of these ways:

- its next call begins them anew, or continues what the client has read (`add`);
- other legs bring them: of a leg that brought nothing (`drop`), of one that brought something of no use (`disown`), or
  of one whose finished choices stay (`hand_over`);
- they are lost (`give_up`).
"""

from __future__ import annotations

from collections.abc import Callable

from nproxy.choices.leg import Leg
from nproxy.choices.leg_output import Choice, LegOutput
from nproxy.choices.records import SentRecord
from nproxy.choices.tally import Tally
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Request


class LegOutputs:
    """The outputs of the legs, by number, and the choices that the client is promised, by its index.

    n: choices per prompt that the legs bring. bringers: the leg that brings each choice now; None before there is one.
    tally: counts the legs' tokens. several_names: one call is relayed, and others answer under names (id, created) that
    the client has not seen.
    """

    def __init__(
        self, request: Request, n: int, record: Callable[[], SentRecord] | None, *, counts_all: bool, relayed: bool
    ) -> None:
        """record: makes the record of what the client is sent of one choice, so that another call can resume one that
        was cut; None if none is resumed. counts_all: usage beside one choice is that of its whole call. relayed: the
        client sees the names of the call.
        """
        self.n = n
        self.outputs: dict[int, LegOutput] = {}
        self.tally = Tally(self.outputs)
        self.several_names = False
        self._stream = request.stream
        self._prompts = request.prompts
        self._record = record
        self._counts_all = counts_all
        self._relayed = relayed
        self._read_before = False  # by the client, of legs that others have taken over
        self.choices = [self._unheard(index) for index in range(request.prompts * n)]
        self.bringers: list[LegOutput | None] = [None] * len(self.choices)

    def add(self, leg: Leg) -> None:
        """Introduce a leg, or its next call.

        Choices that another leg, or an earlier call, failed to bring begin anew with this one. Exceptions are finished
        choices, and those that the client has read in part and this call continues.
        """
        choices = []
        for index in leg.client_indices(self.n, self._prompts):
            choice = self.choices[index]
            if self.bringers[index] is not None:
                if choice.kept:
                    choice.continue_with_another_call()
                else:
                    choice = self.choices[index] = self._unheard(index, choice.counted)
            choices.append(choice)
        cut = self.outputs.get(leg.number)
        if cut is not None:
            self.tally.forgo(cut)
        elif leg.prefix is not None:
            self.tally.renew()
        self.outputs[leg.number] = output = LegOutput.begun(leg, choices, cut)
        output.reported.counts_all = self._counts_all
        for choice in choices:
            self.bringers[choice.index] = output
        if self._relayed and (leg.prompt is not None or any(choice.sent for choice in self.choices)):
            self.several_names = True

    def _unheard(self, index: int, counted: bool = False) -> Choice:
        """Return a choice for which nothing has come."""
        choice = Choice(index)
        choice.counted = counted
        if self._record is not None:
            choice.sent = self._record()
        return choice

    def drop(self, number: int) -> None:
        """Forget a leg whose choices other legs bring."""
        self.tally.forgo(self.outputs.pop(number))

    def disown(self, number: int) -> None:
        """Forget a leg, and all that it brought: other legs bring its choices anew."""
        for choice in self.outputs[number].choices:
            self.choices[choice.index] = self._unheard(choice.index, choice.finished)
            self.bringers[choice.index] = None
        self.drop(number)

    def hand_over(self, number: int) -> None:
        """Let other legs bring what this one did not finish. If it finished nothing, it is forgotten."""
        self._read_before = self.client_has_read_any
        output = self.outputs[number]
        output.finished_here = frozenset(index for index, choice in enumerate(output.choices) if choice.finished)
        self.tally.renew()
        if not output.finished_here:
            self.drop(number)

    def give_up(self, number: int, error: ApiError) -> None:
        """Mark the choices that a leg did not finish as lost. The leg is over."""
        for choice in self.outputs[number].choices:
            if not choice.finished:
                choice.lost = error

    def client_has_read(self, number: int) -> bool:
        """Whether the client has read something that this leg said, so that the leg cannot say it anew."""
        return self._stream and self.outputs[number].generated

    @property
    def client_has_read_any(self) -> bool:
        """Whether the client has read something that any leg said, be it one that is forgotten."""
        return self._read_before or any(map(self.client_has_read, self.outputs))

    def owes(self, leg: Leg) -> bool:
        """Whether the client has read the beginning of a choice whose end this leg can still bring."""
        choices = [self.choices[index] for index in leg.client_indices(self.n, self._prompts)]
        return any(choice.sent and not choice.finished for choice in choices)
