"""Records added up, one by one, to what a report needs."""

from __future__ import annotations

from collections.abc import Sequence

from nproxy.cli.bench.answer import Record
from nproxy.cli.bench.bounds import NAMES, Bound
from nproxy.cli.bench.measures import MEASURES, tokens_of
from nproxy.cli.bench.report import Errors, Goodput, Rates, Requests, Spread, Tokens
from nproxy.cli.bench.samples import BOUND, Samples


class Tally:
    """Grows with every request that has ended; holds at most `bound` times of each measure.

    goodput: the limits that a request must keep to be counted as `good`.
    """

    def __init__(self, bound: int = BOUND, goodput: Sequence[Bound] = ()) -> None:
        self._goodput = goodput
        self.good = 0
        self._samples = {measure.name: Samples(bound) for measure in MEASURES}
        self._late = Samples(bound)
        self._errors: dict[str, Errors] = {}
        self.ok = 0
        self.choices = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._by_usage = 0
        self._usage_texts = 0
        self._usage_tokens = 0

    @property
    def failed(self) -> int:
        """Number of requests without an answer."""
        return sum(errors.count for errors in self._errors.values())

    def add(self, record: Record) -> None:
        """Count a request that has ended; of a failed one only the failure, and how late it was sent."""
        self._late.add(record.late)
        if record.failure is not None:
            kind, words = record.failure
            known = self._errors.get(kind)
            self._errors[kind] = Errors(
                kind=kind, count=known.count + 1 if known else 1, example=known.example if known else words
            )
            return
        self.ok += 1
        self.good += all(_keeps(record, bound) for bound in self._goodput)
        self.choices += record.width
        self.completion_tokens += tokens_of(record)
        if record.usage is not None:
            self._by_usage += 1
            self.prompt_tokens += record.usage.prompt
            self.cached_tokens += (record.usage.prompt_details or {}).get("cached_tokens", 0)
            self._usage_texts += record.texts
            self._usage_tokens += record.usage.completion
        for measure in MEASURES:
            self._samples[measure.name].extend(measure.of(record))

    @property
    def tokens_per_chunk(self) -> float | None:
        """Tokens by usage per chunk with text; None if no request has both."""
        return self._usage_tokens / self._usage_texts if self._usage_texts else None

    def late(self, share: float) -> float:
        """Return the delay in seconds within which this share of all requests was sent; 0 if there were none."""
        return self._late.percentile(share) if len(self._late) else 0.0

    def requests(self, begun: int) -> Requests:
        """Return the counts of requests. begun: how many were sent."""
        return Requests(ok=self.ok, failed=self.failed, unfinished=begun - self.ok - self.failed)

    def tokens(self) -> Tokens:
        """Return the tokens, and how they were counted."""
        return Tokens(
            prompt=self.prompt_tokens,
            cached=self.cached_tokens,
            completion=self.completion_tokens,
            by_usage=self._by_usage,
            by_chunks=self.ok - self._by_usage,
        )

    def rates(self, seconds: float) -> Rates:
        """Return the rates of all that was answered, over so many seconds."""
        counts = {"requests": self.ok, "choices": self.choices, "completion_tokens": self.completion_tokens}
        return Rates(**{name: count / seconds if seconds > 0 else 0.0 for name, count in counts.items()})

    def goodput(self, seconds: float) -> Goodput | None:
        """Return the rate of answers within all bounds, over so many seconds; None if there are no bounds."""
        if not self._goodput:
            return None
        return Goodput(
            bounds={bound.name: 1000 * bound.seconds for bound in self._goodput},
            requests=self.good,
            share=self.good / max(1, self.ok + self.failed),
            per_second=self.good / seconds if seconds > 0 else 0.0,
        )

    def latencies(self) -> dict[str, Spread]:
        """Return the distribution of every measure that has a value."""
        return {name: _spread(samples) for name, samples in self._samples.items() if len(samples)}

    def errors(self) -> tuple[Errors, ...]:
        """Return the failures by kind, the most frequent first."""
        return tuple(sorted(self._errors.values(), key=lambda errors: -errors.count))


def _spread(samples: Samples) -> Spread:
    return Spread(
        count=len(samples),
        mean=samples.mean,
        p50=samples.percentile(0.5),
        p90=samples.percentile(0.9),
        p99=samples.percentile(0.99),
        max=samples.largest,
        exact=samples.exact,
    )


def _keeps(record: Record, bound: Bound) -> bool:
    """Whether a request keeps the bound. A JSON answer has only the time of its end."""
    name = NAMES[bound.name]
    (times,) = (measure.of(record) for measure in MEASURES if measure.name == name)
    known = name == "request" or bool(record.choices)
    return known and all(seconds <= bound.seconds for seconds in times)
