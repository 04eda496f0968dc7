"""Rules to be switched off one at a time: a text in a file is replaced. The row's tests must then fail.

A row is missing here if there is no rule to switch off: what passes because no code touches it (C10, F5, F7, G7, G8,
H1, H2, H4, I1, J6, J8, R2, R6), and what the HTTP library is responsible for (Q13).
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """`old` occurs once in `file`, and is replaced by `new`."""

    row: str
    file: str
    old: str
    new: str


CHOICES = "nproxy/choices/"
OPENAI = "nproxy/openai/"
UPSTREAMS = "nproxy/upstreams/"
GATEWAY = "nproxy/gateway/"
ADMISSION = "nproxy/gateway/admission/"

_VALIDATION = [
    ("A1", CHOICES + "relay.py", "        return self._body\n", "        return b''\n"),
    ("A2", CHOICES + "compose.py", "if leg.width == 1:", "if leg.width == 0:"),
    ("A3", OPENAI + "requests.py", "if n < 1:", "if n < 0:"),
    ("A4", OPENAI + "requests.py", "if n > limits.max_n:", "if False:"),
    ("A5", OPENAI + "requests.py", "    n: int | None\n", "    n: object\n"),
    ("A6", OPENAI + "requests.py", "    n: int | None\n", "    n: float | str | None\n"),
    ("A7", GATEWAY + "request_settings.py", "max_n=config.n_policy.max_n", "max_n=128"),
    ("A8", OPENAI + "requests.py", "if prompts * n > limits.max_choices:", "if False:"),
    ("A9", OPENAI + "requests.py", 'if fields.get("audio") is not None or (', "if False and ("),
    ("A10", OPENAI + "requests.py", 'if fields.get("prediction") is not None:', "if False:"),
    ("A11", OPENAI + "requests.py", "if fields.get(name) not in (None, -1):", "if False:"),
    ("A12", OPENAI + "body.py", "if has_lone_surrogate(unescaped, step):", "if False:"),
    ("A14", CHOICES + "plan.py", 'if greedy == "reject":', "if False:"),
    ("A14", CHOICES + "plan.py", 'if greedy == "dedupe":', "if False:"),
    ("A16", OPENAI + "requests.py", "if best_of < n:", "if False:"),
    ("A17", OPENAI + "requests.py", "width = n_cmpl if width is None else width", "pass"),
    ("A18", CHOICES + "plan.py", "if legs > 1 and request.beam_search:", "if False:"),
]

_SEEDS = [
    ("B1", CHOICES + "seeds.py", "return (seed + offset + 2**63) % 2**64 - 2**63", "return seed"),
    ("B2", CHOICES + "plan.py", "if given is not None or len(legs) > 1 or again:", "if given is not None:"),
    ("B4", CHOICES + "seeds.py", "return (seed + offset + 2**63) % 2**64 - 2**63", "return seed + offset"),
    ("B5", CHOICES + "seeds.py", "if seed == _UNSEEDED:", "if False:"),
    (
        "B4",
        CHOICES + "remedies.py",
        "return Reseeded(fits) if own is None and fits != leg.seed else None",
        "return None",
    ),
    (
        "B6",
        CHOICES + "remedies.py",
        "request.seed is None:\n        return without",
        "request.seed is None:\n        return None",
    ),
    ("B6", CHOICES + "remedies.py", "    if request.drawn == 1:\n        return None\n", ""),
    ("B6", CHOICES + "remedies.py", "not _ABOUT_VALUES.search(error.message)", "True"),
    ("B6", CHOICES + "plan.py", "and own_seed(request, 0) is not None", "and False"),
    ("B7", CHOICES + "seeds.py", "offset_seed(seed, leg.offset)", "offset_seed(seed, 2 * leg.offset)"),
    (
        "B8",
        CHOICES + "recovery.py",
        "        self._roster.pause(run)\n        return [retried,",
        "        self._roster.pause(run)\n        object.__setattr__(run.leg, 'seed', 7)\n        return [retried,",
    ),
]

_ANSWERS = [
    ("C1", CHOICES + "merge.py", "key=itemgetter(0))", "key=itemgetter(0), reverse=True)"),
    ("C2", CHOICES + "merge.py", "answer = in_place(answer, len(output.choices))", "pass"),
    ("C2", CHOICES + "leg.py", "* n + self.offset + upstream_index", "* n + upstream_index"),
    ("C3", GATEWAY + "generate.py", "int(time.time()), request.model", 'int(time.time()), "another"'),
    ("C4", CHOICES + "merge.py", "if chunk.extra and not self._request.stream:", "if False:"),
    (
        "C4",
        CHOICES + "fold.py",
        "return {**piece.delta}, rated, {**piece.extra}",
        "return {**piece.delta}, rated, {}",
    ),
    ("C11", CHOICES + "fold.py", "latest([piece.extra for piece in spoken])", "{}"),
    ("C11", CHOICES + "fold.py", "itemgetter(-1)", '"".join'),
    ("C11", CHOICES + "merge.py", "if key != PADDING and (", "if ("),
    ("C12", CHOICES + "merge.py", "output.beside_usage = chunk.extra", "pass"),
    ("C12", CHOICES + "merge.py", "return self._wire.beside(chunk.extra) if speaks", "return b'' if speaks"),
    ("C12", CHOICES + "merge.py", "self._request.stream and output is self._bringers[0]", "True"),
    ("C13", CHOICES + "relay.py", "if output.surplus or (", "if ("),
    ("C5", CHOICES + "merge.py", "self._bringers[shown[0][1].index]", "self._bringers[shown[-1][1].index]"),
    (
        "C5",
        CHOICES + "merge.py",
        "if self._request.stream and with_choice and self._wire.fingerprint is None:",
        "if False:",
    ),
    ("C7", CHOICES + "conduct.py", "if missing and not self._doomed:", "if False:"),
    (
        "C9",
        OPENAI + "wire.py",
        'choice = {**body, "logprobs": logprobs, "finish_reason": finish_reason}',
        'choice = {**body, "finish_reason": finish_reason}',
    ),
]

_STREAMS = [
    ("D1", CHOICES + "merge.py", "return self._wire.prelude(range(self._request.choices))", 'return b""'),
    ("D2", OPENAI + "chunks.py", 'role = delta.pop("role")', 'role = delta["role"]'),
    ("D2", CHOICES + "relay.py", 'if "role" in delta and (repeated or piece.role is None):', "if False:"),
    ("D3", CHOICES + "relay.py", "return self._wire.prelude([choice.index])", 'return b""'),
    ("D3", CHOICES + "merge.py", "return self._wire.prelude(range(self._request.choices))", 'return b""'),
    (
        "D4",
        CHOICES + "merge.py",
        "chunk, position, choice)):\n                self.frames.append(written)",
        "chunk, position, choice)):\n                self.frames[:] = [written]",
    ),
    ("D5", CHOICES + "relay.py", "wanted = came | names", "wanted = dict(came)"),
    ("D5", GATEWAY + "generate.py", "int(time.time()), request.model", 'int(time.time()), "another"'),
    ("D6", CHOICES + "merge.py", "or (choice.finished and not self._goes_on(output, choice, piece))", ""),
    ("D7", CHOICES + "merge.py", "or (choice.finished and not self._goes_on(output, choice, piece))", ""),
    ("D8", CHOICES + "leg_output.py", "elif not choice.finished:", "elif False:"),
    (
        "D9",
        CHOICES + "merge.py",
        "            output.done = True\n            output.forget()\n            return False",
        "            self.frames.append(DONE_FRAME)\n            return True",
    ),
    ("D18", CHOICES + "merge.py", "and (choice.in_messages or not choice.began)", ""),
    ("D18", CHOICES + "merge.py", "and (choice.in_messages or not choice.began)", "and not choice.began"),
    ("D10", CHOICES + "leg_output.py", "if not self.spoke:", "if not self.done:"),
    (
        "D11",
        CHOICES + "relay.py",
        "return written + event(dumps(wanted) if patch is None else patch(data))",
        "return written + event(dumps(wanted))",
    ),
    ("D15", CHOICES + "recovery.py", "self.parallel = capability.parallel", "self.parallel = 1"),
    (
        "D16",
        OPENAI + "template_making.py",
        "slice(len(before), -len(behind))",
        "slice(len(before) + 1, -len(behind))",
    ),
    (
        "D17",
        OPENAI + "wire.py",
        '{"role":"assistant","content":""}',
        '{"role":"assistant","content":"","n":1}',
    ),
]

_USAGE = [
    ("E1", OPENAI + "usage.py", "prompt=max([usage.prompt for", "prompt=sum([usage.prompt for"),
    ("E2", OPENAI + "usage.py", "prompt=max([usage.prompt for", "prompt=min([usage.prompt for"),
    ("E4", OPENAI + "usage.py", "whole[key] = whole.get(key, 0) + count", "whole[key] = count"),
    ("E5", OPENAI + "usage.py", "usages[0].prompt_details,", "_sum_details(u.prompt_details for u in usages),"),
    (
        "E6",
        OPENAI + "usage.py",
        "        if usage is None:\n            return None, False",
        "        if usage is None:\n            continue",
    ),
    ("E7", OPENAI + "wire.py", "if usage is None and not self.include_usage else", "if usage is None else"),
    ("E7", CHOICES + "merge.py", "if usage is not None and self._request.include_usage else", "if False else"),
    ("E7", CHOICES + "relay.py", 'wanted["usage"] = None', "pass"),
    ("E8", CHOICES + "merge.py", "if usage is not None and self._request.include_usage else", "if usage else"),
    ("E8", CHOICES + "compose.py", "elif not request.include_usage:", "elif False:"),
    ("E9", CHOICES + "copies.py", "completion=usage.completion * n,", "completion=usage.completion,"),
    (
        "E10",
        CHOICES + "tally.py",
        "if leg.usage is None and output.lost:",
        "if counted or (leg.usage is None and output.lost):",
    ),
    ("E11", CHOICES + "leg_output.py", "self._note_prompt()\n", "pass\n"),
    ("E14", OPENAI + "usage.py", "_OF_THE_PROMPT.search(key) is not None and", "False and"),
    ("E14", OPENAI + "usage.py", "total = sum(numbers)", "total = numbers[0]"),
    ("E13", CHOICES + "reported_usage.py", "elif self.shared is not None or len(indices) > 1 or", "elif"),
    ("E11", OPENAI + "usage.py", "prompt=max([usage.prompt for", "prompt=sum([usage.prompt for"),
    ("E12", CHOICES + "merge.py", "output.reported.note(usage, [index])", "pass"),
    (
        "E12",
        CHOICES + "tally.py",
        "else whole, self._completion)",
        "else whole, usage.completion if usage else 0)",
    ),
    (
        "E12",
        OPENAI + "usage.py",
        "return None if whole is None else Usage(whole.prompt, whole.completion)",
        "return None",
    ),
]

_FIELDS = [
    ("F1", CHOICES + "merge.py", "logprobs=piece.logprobs,", "logprobs=None,"),
    ("F1", CHOICES + "fold.py", "latest(logprobs) if logprobs else None", "None"),
    ("F2", CHOICES + "failure_table.py", "NO_CAPACITY | GATEWAY_ERRORS", "NO_CAPACITY | GATEWAY_ERRORS | {400}"),
    (
        "F3",
        OPENAI + "wire.py",
        'choice = {"index": index, **body, "logprobs": logprobs, "finish_reason": finish_reason}\n        if',
        'choice = {"index": index, **body, "finish_reason": finish_reason}\n        if',
    ),
    ("F4", CHOICES + "merge.py", "self._teaches = self._chat or not request.logprobs_asked", "self._teaches = True"),
    ("F8", OPENAI + "jsonvalue.py", '"-Infinity": -9999.0', '"-Infinity": None'),
    ("F8", CHOICES + "relay.py", "if not is_json(data):", "if False:"),
    ("F8", CHOICES + "relay.py", "elif marked or not is_json(body):", "elif False:"),
    ("F4", CHOICES + "leg_output.py", 'self.offsets.mend(piece.logprobs, piece.delta.get("text"))', "piece.logprobs"),
    ("F6", OPENAI + "requests.py", 'if sent.get("top_logprobs") and not sent.get("logprobs"):', "if False:"),
    (
        "G1",
        CHOICES + "leg_output.py",
        "tools: ToolCalls | None = None",
        "tools: ToolCalls | None = field(default_factory=lambda _t=ToolCalls(): _t)",
    ),
    ("G3", OPENAI + "tools.py", "or not value or value == known:", "or not value:"),
    ("G5", OPENAI + "tools.py", "self._count += 1", "pass"),
    ("G10", OPENAI + "tools.py", 'if type(id := call.get("id")) is int:', "if False:"),
    ("G9", OPENAI + "tools.py", "(key != index or name is not None)", "True"),
    ("G6", CHOICES + "merge.py", "self._finish(choice, piece.finish_reason)", 'self._finish(choice, "stop")'),
    ("H3", OPENAI + "wire.py", '"content": None, **message}', '**message, "content": message.get("content") or ""}'),
    ("I2", CHOICES + "merge.py", "self._finish(choice, piece.finish_reason)", 'self._finish(choice, "stop")'),
    ("I4", CHOICES + "merge.py", "extra=piece.extra,", "extra={},"),
    ("J1", CHOICES + "leg.py", "* n + self.offset + upstream_index", "* n + upstream_index"),
    ("J2", CHOICES + "leg.py", "(upstream_index // self.width) * n", "(upstream_index // self.width)"),
    ("J3", OPENAI + "requests.py", "if kinds != {int}:", "if False:"),
    ("J4", UPSTREAMS + "capabilities.py", "prompt_lists=self._takes_lists(model, width)", "prompt_lists=True"),
    ("J4", UPSTREAMS + "capabilities.py", "return width != 1 and self._recall", "return self._recall"),
    ("J4", UPSTREAMS + "capabilities.py", 'and self._recall(model, "prompt_lists") is None', "and True"),
    ("J4", CHOICES + "remedies.py", "as_list = leg.prompt is None", "as_list = False"),
    ("J5", OPENAI + "requests.py", "if kinds == {str}:", "if kinds == {str} and all(prompt):"),
    ("J9", CHOICES + "best_of.py", "reverse=True", "reverse=False"),
    ("J9", CHOICES + "best_of.py", "logprobs=request.logprobs_asked", "logprobs=True"),
    ("J12", UPSTREAMS + "capabilities.py", "SIGHTS = 2", "SIGHTS = 1"),
    ("J12", CHOICES + "best_of.py", "self.notes.append(Learn(Scores()))", "pass"),
    ("J12", CHOICES + "best_of.py", "raise LegFault(Failure(FailureKind.UNSCORED, NO_LOGPROBS))", "return 0.0"),
]

_ERRORS = [
    (
        "K1",
        OPENAI + "errors.py",
        'case {"error": dict(error)}:\n            return error',
        'case {"error": dict()}:\n            return {}',
    ),
    ("K2", CHOICES + "failures.py", "return self.gathered or any(", "return any("),
    ("K2", CHOICES + "failures.py", "math.ceil(max(waits))", "math.ceil(min(waits))"),
    ("K3", CHOICES + "conduct.py", "Losses(settings.partial and", "Losses(False and"),
    ("K3", CHOICES + "conduct.py", "Losses(settings.partial and", "Losses(True and"),
    ("K4", CHOICES + "failures.py", "return min(failures, key=rank)", "return failures[0]"),
    ("K5", CHOICES + "recovery.py", "if run.retries >= per_leg or", "if True or"),
    ("K5", CHOICES + "recovery.py", "if read else self._begin_anew(run, failure)", ""),
    ("K6", CHOICES + "recovery.py", "self._resume(run, failure) if read else ", ""),
    (
        "K6",
        CHOICES + "conduct.py",
        "error_event(error)",
        "self._merge.close()",
    ),
    (
        "K8",
        CHOICES + "reading.py",
        "    if answer.error is not None:\n        raise in_band(body)\n",
        "",
    ),
    ("K9", OPENAI + "errors.py", "error = _opened(_inside(value))", "error = _inside(value)"),
    ("K9", OPENAI + "errors.py", " or _TAG.match(message)", ""),
    (
        "K10",
        CHOICES + "conduct.py",
        "if not self._buffer.begun and not self._doomed:\n                    self._begin()\n",
        "if False:\n",
    ),
    (
        "K10",
        CHOICES + "conduct.py",
        "self._commands.append(SetTimer(Timer(TimerKind.HEADERS), self._settings.headers_after_seconds))",
        "self._begin()",
    ),
    ("K11", UPSTREAMS + "failures.py", '_connect(f"{who} {_UNREACHED[error.why]}.")', "_connect(str(error.cause))"),
    (
        "K12",
        CHOICES + "reading.py",
        "raise _invalid_event() from error\n    if chunk",
        "return UpstreamChunk((), None, None, None, {})\n    if chunk",
    ),
    ("K13", CHOICES + "failures.py", "    if retries_spent and", "    if False and"),
    ("K8", CHOICES + "failures.py", "return status if status < 500 and", "return status if False and"),
    ("K17", CHOICES + "reading.py", "return body.lstrip().removeprefix(BOM).startswith(_FIELDS)", "return False"),
    ("K16", OPENAI + "chunks.py", "return error or None", "return error"),
    ("K18", OPENAI + "chunks.py", "if not is_done(mark):", "if True:"),
    ("K18", CHOICES + "relay.py", 'body.rstrip().endswith(b"]")', "False"),
    ("K14", CHOICES + "bodies.py", "for piece in (text, finish)]", "for piece in (text,)]"),
    ("K15", CHOICES + "failures.py", "    if status in KEY_REFUSED and failure.own_key:", "    if False:"),
]

_LIMITS = [
    ("L1", GATEWAY + "server.py", "handler_cancellation=True", "handler_cancellation=False"),
    ("M1", GATEWAY + "inbox.py", "if self._batches < self._most:", "if True:"),
    (
        "M3",
        GATEWAY + "driver.py",
        "output.append(command.data)\n            else",
        "output.append(command.data)\n"
        "                self.__dict__.setdefault('kept', []).append(bytes(command.data))\n            else",
    ),
    (
        "L3",
        ADMISSION + "client.py",
        "            self._transport.leave(ask.ticket)\n            if",
        "            if",
    ),
    ("L3", GATEWAY + "server.py", "handler_cancellation=True", "handler_cancellation=False"),
    ("L7", CHOICES + "tally.py", "                completion += output.pieces", "                pass"),
    ("L7", CHOICES + "merge.py", "                output.pieces += 1\n", ""),
    ("L5", GATEWAY + "app.py", "self.draining = self.admission.draining = True", "self.admission.draining = True"),
    ("L5", GATEWAY + "serve.py", "        await _break_off(app)\n", "        pass\n"),
    (
        "L5",
        GATEWAY + "serve.py",
        "drain(gateway.app, gateway.app.config.listen.drain_seconds, hurry)",
        "drain(gateway.app, 1e9)",
    ),
    ("N1", UPSTREAMS + "client.py", "url, self._connect_seconds, deadline", "url, None, deadline"),
    ("N1", UPSTREAMS + "event_stream.py", "return None  # half an", "return self._watchdog.watch(inf)  # half an"),
    ("N1", UPSTREAMS + "event_stream.py", "= self._clock() + self._idle, ", "= inf, "),
    ("N1", UPSTREAMS + "event_stream.py", "watchdog.watch(at)", "watchdog.watch(min(at, self._watchdog.deadline))"),
    ("N1", UPSTREAMS + "event_stream.py", 'at, self._which = self._total, "total"', "pass"),
    ("N1", UPSTREAMS + "client.py", "watch(started + limit.seconds)", "watch(inf)"),
    ("N2", CHOICES + "failures.py", "FailureKind.CONNECT_TIMEOUT:\n", "FailureKind.CONNECT_TIMEOUT if False:\n"),
    ("N3", ADMISSION + "ledger.py", "elif self.taken + choices > self.bounds.inflight:", "elif False:"),
    ("N3", ADMISSION + "bounds.py", "return least if ask.choices > least else None", "return None"),
    (
        "N3",
        ADMISSION + "bounds.py",
        "ask.most, self.upstreams.get(ask.upstream), ask.rates.choices)",
        "ask.most)",
    ),
    (
        "N4",
        ADMISSION + "ledger.py",
        "                self._reserved = True\n                return\n            else:",
        "                pass\n            else:",
    ),
    ("N4", ADMISSION + "queue.py", "return head.start, head.number, head", "return 0.0, head.number, head"),
    ("N5", ADMISSION + "ledger.py", "elif (over := self.waiting - self.bounds.queue) > 0:", "elif (over := 0):"),
    (
        "N5",
        ADMISSION + "server.py",
        "self._timer, self._ticks_at = self._loop.call_at(deadline, self._tick), deadline",
        "pass",
    ),
    ("N5", ADMISSION + "ledger.py", "return min(max(seconds, LEAST_RETRY), MOST_RETRY)", "return 1e6"),
    (
        "N7",
        UPSTREAMS + "replicas.py",
        "return parallel is None or self.legs + self.legs_elsewhere < parallel",
        "return True",
    ),
]

_HEADERS = [
    ("O1", UPSTREAMS + "headers.py", 'credentials=api_key == "passthrough"', "credentials=True"),
    ("O2", GATEWAY + "request_id.py", "usable(given) or", "given or"),
    ("O2", GATEWAY + "request_id.py", 'f"{id}-{offset}-r{attempt}"', 'f"{id}-{offset}"'),
    ("O3", UPSTREAMS + "headers.py", "not in headers:", "not in () or headers:"),
    ("O4", UPSTREAMS + "headers.py", '{"host", "content-length", "expect", "cookie"}', '{"content-length", "cookie"}'),
    ("O5", OPENAI + "encoding.py", "self._inflate = zlib.decompressobj(window)", "return"),
    ("O8", GATEWAY + "upstream_calls.py", "-{offset}{self._variant(leg, offset)}", ""),
    ("O8", GATEWAY + "upstream_calls.py", "replace(leg, number=0)", "None"),
    ("O9", GATEWAY + "upstream_calls.py", "[*self._tracing.headers(leg.number).items()]", "[]"),
    ("O9", GATEWAY + "spans.py", "return self._calls[number].span.context", "return self.request.context"),
]

_BYTES = [
    ("P1", OPENAI + "sse.py", 'if field == b"data":', 'if field in (b"data", b""):'),
    ("P2", OPENAI + "sse.py", '.replace(b"\\r\\n", b"\\n").replace(b"\\r", b"\\n")', '.replace(b"\\r\\n", b"\\n")'),
    ("P2", OPENAI + "sse.py", 'self._after_cr = data.endswith(b"\\r")', "self._after_cr = False"),
    ("P3", OPENAI + "sse.py", 'joined = b"\\n".join(data)', 'joined = data[0] if data else b""'),
    ("P4", OPENAI + "sse.py", "return start.removeprefix(BOM)", "return start"),
    (
        "P5",
        OPENAI + "sse.py",
        "            pending += data\n",
        "            pending += data.decode('utf-8', 'ignore').encode()\n",
    ),
    ("P6", OPENAI + "sse.py", "seen = len(pending) - 1", "seen = len(pending)"),
    ("P7", OPENAI + "sse.py", 'line.partition(b":")', 'line.partition(b": ")'),
    ("P8", CHOICES + "merge.py", '        if name == "error":', "        if name:"),
    ("P9", OPENAI + "sse.py", 'return self._events([last.removesuffix(b"\\n")])', "return []"),
    ("P11", OPENAI + "sse.py", "events.append(event)", "events = events or [event]"),
    ("P13", CHOICES + "merge.py", '        if name == "error":', "        if False:"),
    ("P15", OPENAI + "sse.py", 'elif field == b"error" and value:', "elif False:"),
    ("P14", OPENAI + "wire.py", 'PING = b": ping', 'PING = b": keep-alive'),
    (
        "P14",
        CHOICES + "output_buffer.py",
        "        if self._silent:\n            self.writes.append(PING)",
        "        pass",
    ),
]

_ROUTING = [
    ("Q1", UPSTREAMS + "models.py", "if read is not None or not not_now:", "if True:"),
    ("Q1", UPSTREAMS + "models.py", "return self._configured is None and self._entries is None", "return True"),
    ("Q1", UPSTREAMS + "upstreams.py", " or (upstream is only and upstream.may_serve(model)):", ":"),
    (
        "Q1",
        UPSTREAMS + "upstreams.py",
        "self.all[0] if len(self.all) == 1 and not self.all[0].models.configured",
        "self.all[0] if True",
    ),
    ("Q1", UPSTREAMS + "upstreams.py", "listed[0] if len(listed) == 1 else None", "listed[0] if listed else None"),
    ("Q1", UPSTREAMS + "models.py", "return self._configured is None and self._entries is None", "return False"),
    ("Q1", UPSTREAMS + "upstreams.py", "upstream.name in implied.upstream.fallback", "False"),
    (
        "Q1",
        UPSTREAMS + "models.py",
        "return model + _LATEST if model + _LATEST in self._entries else None",
        "return None",
    ),
    (
        "Q2",
        CHOICES + "compose.py",
        "if capability.model is not None and capability.model != request.model:",
        "if False:",
    ),
    ("Q2", CHOICES + "merging.py", "names.model if aliased else None", "None"),
    ("Q3", GATEWAY + "upstream_calls.py", "model,\n            capability.prefix_cache,", "model,\n            False,"),
    ("Q3", UPSTREAMS + "replica_slots.py", "        if common is not None:\n            return (common,)\n", ""),
    ("N6", CHOICES + "compose.py", 'if request.stream or "stream" in leg.omit:', "if request.stream:"),
    ("N6", CHOICES + "plan.py", "warm = capability.prefix_cache and", "warm = False and"),
    ("J2", CHOICES + "plan.py", "(unsure or not capability.prompt_lists)", "(not capability.prompt_lists)"),
    ("C7", CHOICES + "leg_output.py", "if self.unplaced:", "if False:"),
    ("Q4", CHOICES + "plan.py", "        width = n\n", "        width = 1\n"),
    (
        "Q6",
        UPSTREAMS + "capabilities.py",
        "            case NativeWidth(asked=asked, got=got):\n",
        "            case NativeWidth(asked=asked, got=got):\n                return\n",
    ),
    ("Q6", UPSTREAMS + "widths.py", "if got >= self.worked or self.doubted:", "if True:"),
    ("Q6", UPSTREAMS + "widths.py", "if got >= self.worked or self.doubted:", "if got >= self.worked:"),
    ("Q6", CHOICES + "remedies.py", "if request.greedy or _ABOUT", "if _ABOUT"),
    ("Q6", CHOICES + "remedies.py", " or _ABOUT_GREEDY.search(error.message)", ""),
    ("Q6", CHOICES + "remedies.py", "num_return_sequences|", ""),
    ("Q6", CHOICES + "remedies.py", "several = leg.width > 1 and", "several = False and"),
    ("Q6", CHOICES + "learning.py", "if streamed and got == 1 and", "if False and"),
    ("Q6", CHOICES + "learning.py", "several and output.broke_off_in_part", "False"),
    ("Q6", CHOICES + "plan.py", "if not capability.stream_n and", "if False and"),
    ("Q6", CHOICES + "remedies.py", "teaches = not _conditional(request, error)", "teaches = True"),
    ("Q6", CHOICES + "remedies.py", "_AT_FAULT | {500, 501}", "_AT_FAULT"),
    ("Q6", CHOICES + "learning.py", "not request.greedy if got < leg.width", "True if got < leg.width"),
    (
        "Q6",
        CHOICES + "compose.py",
        "(capability.stream_options or options_given(request))",
        "capability.stream_options",
    ),
    ("Q8", GATEWAY + "paths.py", 'path.startswith(root.rstrip("/") + "/")', "path.startswith(root)"),
    (
        "Q9",
        GATEWAY + "models.py",
        "for upstream in app.upstreams.all:",
        "for upstream in app.upstreams.all[:1]:",
    ),
    ("Q10", OPENAI + "errors.py", 'headers={"Allow": ", ".join(allowed)},', ""),
    (
        "Q11",
        GATEWAY + "routes.py",
        "return replace(found, serve=_nothing, methods=()) if _is_ambiguous(path) else found",
        "return found",
    ),
    (
        "Q15",
        GATEWAY + "heads.py",
        "if hdrs.TRANSFER_ENCODING in request.headers:",
        "if False:",
    ),
    ("Q16", GATEWAY + "paths.py", '    "/v1/responses",\n', ""),
    ("Q19", "nproxy/telemetry/metrics.py", "return model if model in self._models else OTHER", "return model"),
    ("Q19", GATEWAY + "observe.py", ' if command.finish_reason in _REASONS else "other"', ""),
    ("Q20", GATEWAY + "observe.py", "self._series.inflight.value -= 1", "pass"),
]

_NATIVE = [
    ("R1", CHOICES + "merge.py", "return self._wire.prelude(range(self._request.choices))", 'return b""'),
    ("R3", OPENAI + "usage.py", "parts = tails or", "parts = tails[-1:] or"),
    ("R4", CHOICES + "compose.py", "if not capability.json_usage and leg.choices(request.prompts) > 1:", "if False:"),
    ("R4", CHOICES + "compose.py", "leg.choices(request.prompts) > 1", "leg.width > 1"),
    ("R5", OPENAI + "tools.py", '{"index": call.index}', '{"index": sent["index"]}'),
    ("R8", CHOICES + "merge.py", "if is_null(data):", "if False:"),
    ("R9", UPSTREAMS + "upstream.py", "if others.may_have_interrupted:", "if False:"),
    ("R9", CHOICES + "failure_table.py", "INTERRUPTED: Follows.ELSEWHERE | Follows.RESUMES", "INTERRUPTED: Follows(0)"),
    ("R9", CHOICES + "leg_outputs.py", "return self._stream and self.outputs[number].generated", "return False"),
    ("R9", CHOICES + "recovery.py", "return [Learn(OneAtATime(verdict))]", "return []"),
    ("R9", UPSTREAMS + "upstream.py", "leg=call.leg, alone=alone, waits", "leg=call.leg, waits"),
    (
        "R10",
        CHOICES + "remedies.py",
        "if not failure.body and not failure.unread and failure.status in _AT_FAULT:",
        "if False:",
    ),
    (
        "R10",
        UPSTREAMS + "capabilities.py",
        'request_id=self._recall(model, "request_id") is None,',
        "request_id=True,",
    ),
    ("R11", CHOICES + "recovery.py", "or not failure.room:", "or True:"),
    (
        "R11",
        UPSTREAMS + "overload/prospects.py",
        "if answers or others_in_flight or not self._found_out(attempt)",
        "if True",
    ),
    ("R11", UPSTREAMS + "gate.py", "and (queue.waiting or queue.announcements.workers_go_first())", "and False"),
    ("R7", CHOICES + "remedies.py", "named_width(error.message, leg.width) or 1", "1"),
]

_FLEET = [
    ("S1", UPSTREAMS + "replica_slots.py", "failed = group.avoided(attempt.leg)", "failed = ()"),
    ("S2", UPSTREAMS + "breaker.py", "        if opens:\n            self._open(now)\n", ""),
    (
        "S3",
        UPSTREAMS + "balancing.py",
        "if replica.answers(now)]",
        "]",
    ),
    (
        "S4",
        CHOICES + "conduct.py",
        "if self._settings.fallback_possible and self._losses.upstreams_own and not spoken:",
        "if False:",
    ),
    (
        "S5",
        CHOICES + "conduct.py",
        "spoken = self._buffer.spoken",
        "spoken = False",
    ),
    ("S11", UPSTREAMS + "balancing.py", "if replica.answers(now)]", "if False]"),
    ("S6", CHOICES + "resume.py", 'if not request.stream or how == "off":', "if True:"),
    ("S7", CHOICES + "replay.py", "if self.left <= 0 and self.tape.digest != self.digest:", "if False:"),
    (
        "S8",
        UPSTREAMS + "replicas.py",
        "        self.weight, self.models, self.draining = given.weight, given.models, given.draining",
        "        self.weight, self.models = given.weight, given.models",
    ),
    (
        "S9",
        GATEWAY + "upstream_calls.py",
        "prompt_hash(request) if upstream.by_prompt else None",
        "None",
    ),
    ("S10", UPSTREAMS + "gate.py", "for handle in handles[:most]:", "for handle in ():"),
]

MUTATIONS = [
    Mutation(*row)
    for rows in (
        _VALIDATION,
        _SEEDS,
        _ANSWERS,
        _STREAMS,
        _USAGE,
        _FIELDS,
        _ERRORS,
        _LIMITS,
        _HEADERS,
        _BYTES,
        _ROUTING,
        _NATIVE,
        _FLEET,
    )
    for row in rows
]
