"""Peculiarities of servers' streams. Each function changes the chunks of one answer; those of HARMLESS can be combined.

None of them changes what is said, so a client must read the same with any of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.fakes.behaviour import Quirk

Chunk = dict[str, Any]


def each(change: Callable[[Chunk], Chunk | None]) -> Quirk:
    """Change every chunk by itself; None drops it. Chunks that are bytes already stay as they are."""

    def changed(chunks: list[Any]) -> list[Any]:
        new = [chunk if isinstance(chunk, bytes) else change(chunk) for chunk in chunks]
        return [chunk for chunk in new if chunk is not None]

    return changed


def composed(*quirks: Quirk) -> Quirk:
    """Apply quirks one after the other."""

    def all_of_them(chunks: list[Any]) -> list[Any]:
        for quirk in quirks:
            chunks = quirk(chunks)
        return chunks

    return all_of_them


def with_choice(chunk: Chunk, **changes: Any) -> Chunk:
    """The chunk with changed keys in its one choice."""
    return {**chunk, "choices": [{**chunk["choices"][0], **changes}]}


def delta_of(chunk: Any) -> dict[str, Any] | None:
    """The delta of a chunk with one choice; None for other chunks and for legacy completions."""
    if isinstance(chunk, bytes) or len(chunk["choices"]) != 1:
        return None
    delta: dict[str, Any] | None = chunk["choices"][0].get("delta")
    return delta


def dumped(chunk: Any) -> bytes:
    """A chunk as the fake writes it."""
    return json.dumps(chunk, ensure_ascii=False).encode()


# ---- roles


def role_repeated(chunks: list[Any]) -> list[Any]:
    """Every delta has the role."""
    return each(lambda c: c if delta_of(c) is None else with_choice(c, delta={"role": "assistant", **c_delta(c)}))(
        chunks
    )


def role_null(chunks: list[Any]) -> list[Any]:
    """Every delta but the first has `role: null`."""
    return each(
        lambda c: (
            c if delta_of(c) is None or "role" in c_delta(c) else with_choice(c, delta={**c_delta(c), "role": None})
        )
    )(chunks)


def role_empty(chunks: list[Any]) -> list[Any]:
    """The role is "" in all deltas."""
    return each(lambda c: c if delta_of(c) is None else with_choice(c, delta={**c_delta(c), "role": ""}))(chunks)


def role_missing(chunks: list[Any]) -> list[Any]:
    """There is no role chunk."""
    return each(lambda c: None if "role" in (delta_of(c) or {}) and not _says_anything(c) else c)(chunks)


def _says_anything(chunk: Chunk) -> bool:
    said = {key: value for key, value in c_delta(chunk).items() if key != "role"}
    return _finishes(chunk) or any(said.values())


def role_with_the_first_token(chunks: list[Any]) -> list[Any]:
    """SGLang: there is no role chunk; the role comes with the first text."""
    seen: set[int] = set()

    def change(chunk: Chunk) -> Chunk:
        delta = delta_of(chunk)
        index = chunk["choices"][0]["index"] if chunk["choices"] else -1
        if delta is None or index in seen:
            return chunk
        seen.add(index)
        return with_choice(chunk, delta={"role": "assistant", **delta})

    return each(change)(role_missing(chunks))


def c_delta(chunk: Chunk) -> dict[str, Any]:
    delta: dict[str, Any] = chunk["choices"][0]["delta"]
    return delta


# ---- heads


def id_per_choice(chunks: list[Any]) -> list[Any]:
    """SGLang: every choice has an id of its own."""
    return each(lambda c: {**c, "id": f"{c['id']}-{c['choices'][0]['index'] if c['choices'] else 0}"})(chunks)


def created_per_chunk(chunks: list[Any]) -> list[Any]:
    """`created` grows from chunk to chunk."""
    return [c if isinstance(c, bytes) else {**c, "created": at} for at, c in enumerate(chunks, 1)]


def late_fingerprint(chunks: list[Any]) -> list[Any]:
    """The fingerprint comes with the third chunk only."""
    return [
        c if isinstance(c, bytes) or at > 2 else {k: v for k, v in c.items() if k != "system_fingerprint"}
        for at, c in enumerate(chunks)
    ]


# ---- texts


def numbers(chunks: list[Any]) -> list[Any]:
    """Cloudflare's Workers AI: a text that is a number comes as one (cloudflare/ai#651)."""
    return each(lambda c: with_choice(c, delta={**c_delta(c), "content": int(text)}) if (text := _digits(c)) else c)(
        chunks
    )


def _digits(chunk: Any) -> str:
    """The text of a chunk that a number would be written as; "" if it is no such text."""
    text = (delta_of(chunk) or {}).get("content")
    return text if isinstance(text, str) and text.isdecimal() and str(int(text)) == text else ""


# ---- finishes


def finish_twice(chunks: list[Any]) -> list[Any]:
    """Every finish chunk is sent twice."""
    return [again for c in chunks for again in ([c, c] if _finishes(c) else [c])]


def finish_with_the_last_text(chunks: list[Any]) -> list[Any]:
    """llama-cpp-python and others: the finish has no chunk of its own."""
    kept: list[Any] = []
    for chunk in chunks:
        if _finishes(chunk):
            index = chunk["choices"][0]["index"]
            at = max(i for i, c in enumerate(kept) if not isinstance(c, bytes) and _index(c) == index)
            kept[at] = with_choice(kept[at], finish_reason=chunk["choices"][0]["finish_reason"])
        else:
            kept.append(chunk)
    return kept


def empty_finish(chunks: list[Any]) -> list[Any]:
    """ "" instead of null."""
    return each(lambda c: c if _finishes(c) or not c["choices"] else with_choice(c, finish_reason=""))(chunks)


def finish_named_null(chunks: list[Any]) -> list[Any]:
    """ "null" instead of null (KoboldCpp until March 2025, Ai00)."""
    return each(lambda c: c if _finishes(c) or not c["choices"] else with_choice(c, finish_reason="null"))(chunks)


def after_the_finish(chunks: list[Any]) -> list[Any]:
    """More text after a choice's finish."""
    return [more for c in chunks for more in ([c, _more(c)] if _finishes(c) else [c])]


def _more(chunk: Chunk) -> Chunk:
    said = {"delta": {"content": "LATE"}} if "delta" in chunk["choices"][0] else {"text": "LATE"}
    return with_choice(chunk, finish_reason=None, **said)


def _finishes(chunk: Any) -> bool:
    if isinstance(chunk, bytes) or not chunk["choices"]:
        return False
    return chunk["choices"][0]["finish_reason"] not in (None, "", "null")


def _index(chunk: Chunk) -> int | None:
    return chunk["choices"][0]["index"] if chunk["choices"] else None


# ---- usage


def usage_null(chunks: list[Any]) -> list[Any]:
    """Every chunk with a choice has `usage: null`, whether or not usage was requested."""
    return each(lambda c: {**c, "usage": None} if c["choices"] else c)(chunks)


def usage_per_choice(chunks: list[Any]) -> list[Any]:
    """llama.cpp: a usage chunk for every choice, each with the prompt and its own tokens."""
    texts: dict[int, int] = {}
    for c in chunks:
        if isinstance(c, dict) and (index := _index(c)) is not None:
            texts[index] = texts.get(index, 0) + _speaks(c)
    new: list[Any] = []
    for c in chunks:
        if isinstance(c, bytes) or c["choices"] or not c.get("usage"):
            new.append(c)
            continue
        prompt = c["usage"]["prompt_tokens"]
        for index in sorted(texts):
            counts = {"prompt_tokens": prompt, "completion_tokens": texts[index], "total_tokens": prompt + texts[index]}
            new.append({**c, "usage": counts})
    return new


def usage_beside_the_last_choice(chunks: list[Any]) -> list[Any]:
    """Mistral, Groq: usage has no chunk of its own."""
    told = [c["usage"] for c in chunks if not c["choices"] and c.get("usage")]
    *before, last = (c for c in chunks if c["choices"])
    return [*before, {**last, "usage": told[-1]} if told else last]


def usage_in_the_last_choice(chunks: list[Any]) -> list[Any]:
    """Moonshot: usage is a key of the choice, beside its finish (earendil-works/pi#2017)."""
    told = [c["usage"] for c in chunks if not c["choices"] and c.get("usage")]
    *before, last = (c for c in chunks if c["choices"])
    return [*before, with_choice(last, usage=told[-1]) if told else last]


def usage_named_otherwise(chunks: list[Any]) -> list[Any]:
    """mlx-vlm: input and output instead of prompt and completion (Blaizzy/mlx-vlm#1009)."""
    return each(lambda c: {**c, "usage": named_otherwise(c["usage"])} if c.get("usage") else c)(chunks)


def named_otherwise(usage: dict[str, Any]) -> dict[str, Any]:
    """The counts under mlx-vlm's names."""
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    return {names.get(key, key): count for key, count in usage.items()}


def _speaks(chunk: Chunk) -> bool:
    choice = chunk["choices"][0]
    return any(choice.get("delta", {"text": choice.get("text")}).values()) and "role" not in choice.get("delta", {})


# ---- frames


def together(chunks: list[Any]) -> list[Any]:
    """Consecutive chunks of different choices are sent as one."""
    joined: list[Any] = []
    for c in chunks:
        last = joined[-1] if joined else None
        if (
            isinstance(c, dict)
            and isinstance(last, dict)
            and c["choices"]
            and last["choices"]
            and c["choices"][0]["index"] not in {choice["index"] for choice in last["choices"]}
        ):
            joined[-1] = {**last, "choices": last["choices"] + c["choices"]}
        else:
            joined.append(c)
    return joined


def empty_chunks(chunks: list[Any]) -> list[Any]:
    """Azure, vLLM and others: chunks without choices, or with empty deltas."""
    new: list[Any] = []
    for c in chunks:
        if isinstance(c, dict) and len(c["choices"]) == 1:
            new.append({key: value for key, value in {**c, "choices": []}.items() if key != "usage"})
            if "delta" in c["choices"][0] and not _finishes(c):
                new.append(with_choice(c, delta={}, logprobs=None))
        new.append(c)
    return new


def surplus_choice(chunks: list[Any]) -> list[Any]:
    """A choice speaks that was not requested."""
    return [more for c in chunks for more in ([c, with_choice(c, index=77)] if _one(c) else [c])]


def _one(chunk: Any) -> bool:
    return isinstance(chunk, dict) and len(chunk["choices"]) == 1


def unknown_keys(chunks: list[Any]) -> list[Any]:
    """Keys that no specification contains."""
    return each(lambda c: {**(with_choice(c, token_ids=None) if _one(c) else c), "p": "x" * (len(json.dumps(c)) % 7)})(
        chunks
    )


def comments(chunks: list[Any]) -> list[Any]:
    """Comments between the events."""
    return [more for c in chunks for more in (b": OPENROUTER PROCESSING\n\n", c)]


HARMLESS: tuple[Quirk, ...] = (
    role_repeated,
    role_null,
    role_empty,
    role_missing,
    role_with_the_first_token,
    id_per_choice,
    created_per_chunk,
    late_fingerprint,
    numbers,
    finish_twice,
    finish_with_the_last_text,
    empty_finish,
    finish_named_null,
    after_the_finish,
    usage_null,
    usage_per_choice,
    empty_chunks,
    surplus_choice,
    comments,
)
"""Quirks that may be combined in any order. They take and return one choice per chunk; `together` may follow, last."""
