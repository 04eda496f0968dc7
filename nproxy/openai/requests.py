"""What nproxy must know of a generation request, validated; everything else stays opaque in the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from nproxy.openai.body import Body
from nproxy.openai.choice_params import ChoiceParams, read_choice_params
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import above, below, empty_array, missing, wrong_type
from nproxy.openai.typed import Int64, Stop, checked

MAX_BEST_OF = 20
"""OpenAI's limit."""

STATE_FIELDS = ("session_id", "id_slot", "slot_id")
"""Fields that name the state of one upstream sequence, which several choices cannot share."""

LONGEST_MODEL = 4096
"""Characters of a model's name, which may be a path. Limited because names are kept with what is learned of each."""

Prompt = str | list[int]
"""One prompt of a legacy completion: a text, or token ids."""


@frozen
class Limits:
    """How many choices a request may have: per prompt, and in all."""

    max_n: int = 128
    max_choices: int = 512


@frozen
class GenerationRequest:
    """The fields that chat and legacy completions share."""

    dialect: ClassVar[Dialect]

    body: Body
    model: str
    """As the client asked for it, or the default model."""
    n: int
    """Choices per prompt; 1 if the client sent none, or null."""
    drawn: int
    """Choices per prompt that the answer is made from: best_of if it was sent, else n."""
    seed: int | None
    """An int64; None if absent."""
    stream: bool
    include_usage: bool
    """From stream_options. False without stream."""
    continuous_usage: bool
    """From stream_options. False without stream."""
    temperature: float | None
    """None if absent."""
    logprobs_asked: bool
    """The client wants log probabilities."""
    beam_search: bool
    """`use_beam_search` is true."""
    choice_params: ChoiceParams | None
    """For each choice, what replaces the request's own sampling parameters; None if absent."""
    prompts: int
    """Prompts in this request, 1 for chat."""

    @property
    def choices(self) -> int:
        """Choices in the answer: prompts x n."""
        return self.prompts * self.n

    @property
    def greedy(self) -> bool:
        """Whether the client asked for temperature 0."""
        return self.temperature == 0

    @property
    def all_equal(self) -> bool:
        """Whether all choices of a prompt are equal: at temperature 0, whatever their seeds.

        The beams of a search differ at any temperature, and so do choices whose own parameters differ.
        """
        if self.beam_search:
            return False
        if self.choice_params is None:
            return self.greedy
        own = [{"temperature": self.temperature, **params, "seed": None} for params in self.choice_params]
        return own[0]["temperature"] == 0 and all(params == own[0] for params in own)


@frozen
class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    dialect: ClassVar[Dialect] = Dialect.CHAT


@frozen
class CompletionRequest(GenerationRequest):
    """A request to /v1/completions.

    prompt: the prompts in order, `prompts` of them. listed: the client sent them as a list of prompts (a single text,
    and a single list of token ids, are not one). echo: the prompt comes back with each choice.
    """

    dialect: ClassVar[Dialect] = Dialect.COMPLETIONS

    prompt: tuple[Prompt, ...]
    listed: bool
    echo: bool


Asked = TypeVar("Asked", bound=GenerationRequest)


Request = ChatRequest | CompletionRequest


def parse_chat(body: Body, limits: Limits, default_model: str | None = None) -> ChatRequest:
    """Validate a chat request. Raises ApiError 400 naming the field at fault. default_model: used if none is named."""
    sent = checked(_CHAT, body.fields)
    _check_messages(body)
    if sent.get("top_logprobs") and not sent.get("logprobs"):
        raise invalid_request("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return _asked(ChatRequest, sent, body, limits, default_model, bool(sent.get("logprobs")), 1)


def parse_completion(body: Body, limits: Limits, default_model: str | None = None) -> CompletionRequest:
    """Validate a legacy completion request, as `parse_chat` does a chat request."""
    sent = checked(_COMPLETION, body.fields)
    prompt, listed = read_prompts(body.fields, "prompt")
    return _asked(
        CompletionRequest,
        sent,
        body,
        limits,
        default_model,
        sent.get("logprobs") is not None,
        len(prompt),
        prompt,
        listed,
        bool(sent.get("echo")),
    )


# What clients send, field by field: types only. The rules about several fields are below.


@with_config(ConfigDict(strict=True))
class StreamOptions(TypedDict, total=False):
    """The field `stream_options`."""

    include_usage: bool | None
    continuous_usage_stats: bool | None


_NO_OPTIONS: StreamOptions = {}


@with_config(ConfigDict(strict=True))
class _Sent(TypedDict, total=False):
    model: Annotated[str, Field(min_length=1, max_length=LONGEST_MODEL)] | None
    n: int | None
    n_cmpl: int | None
    best_of: int | None
    seed: Int64 | None
    stop: Stop
    stream: bool | None
    stream_options: StreamOptions | None
    temperature: float | None
    use_beam_search: bool | None


class SentChat(_Sent, total=False):
    """The fields of a chat request."""

    logprobs: bool | None
    top_logprobs: int | None


class SentCompletion(_Sent, total=False):
    """The fields of a legacy completion request."""

    logprobs: int | None
    echo: bool | None


_CHAT, _COMPLETION = TypeAdapter(SentChat), TypeAdapter(SentCompletion)


def _asked(
    shape: type[Asked],
    sent: _Sent,
    body: Body,
    limits: Limits,
    default_model: str | None,
    logprobs_asked: bool,
    prompts: int,
    *own: Any,
) -> Asked:
    """Return a request, from what both dialects have in common. own: the fields that only this class has, in order."""
    stream, options = bool(sent.get("stream")), sent.get("stream_options") or _NO_OPTIONS
    include_usage = bool(options.get("include_usage"))
    n, drawn = _widths(sent, body, prompts, limits)
    if sent.get("stream_options") is not None and not stream:
        raise invalid_request("'stream_options' needs 'stream' to be true.", param="stream_options")
    model = sent.get("model") or default_model
    if model is None:
        raise missing("model")
    return shape(
        body,
        model,
        n,
        drawn,
        sent.get("seed"),
        stream,
        include_usage,
        include_usage and bool(options.get("continuous_usage_stats")),
        sent.get("temperature"),
        logprobs_asked,
        bool(sent.get("use_beam_search")),
        read_choice_params(body.fields, n, drawn),
        prompts,
        *own,
    )


def _widths(sent: _Sent, body: Body, prompts: int, limits: Limits) -> tuple[int, int]:
    """Check n, best_of and what several choices exclude. Returns n, and the choices to draw for each prompt."""
    width, n_cmpl, best_of = sent.get("n"), sent.get("n_cmpl"), sent.get("best_of")
    if width is not None and n_cmpl is not None and width != n_cmpl:
        raise invalid_request(
            "'n' and 'n_cmpl' are two names of the same parameter, but their values differ.", param="n"
        )
    param = "n_cmpl" if width is None and n_cmpl is not None else "n"
    width = n_cmpl if width is None else width
    n = 1 if width is None else width
    if n < 1:
        raise below(param, n, 1)
    if n > limits.max_n:
        raise above(param, n, limits.max_n)
    if prompts * n > limits.max_choices:
        raise _too_many_choices(param, n, prompts, limits)
    if best_of is not None:
        _check_best_of(best_of, n, prompts, bool(sent.get("stream")), limits)
    drawn = n if best_of is None else best_of
    if drawn > 1:
        _check_several(body, param)
    return n, drawn


def _check_best_of(best_of: int, n: int, prompts: int, stream: bool, limits: Limits) -> None:
    if best_of < 1:
        raise below("best_of", best_of, 1)
    most = min(MAX_BEST_OF, limits.max_n)
    if best_of > most:
        raise above("best_of", best_of, most)
    if best_of < n:
        raise invalid_request(f"'best_of' ({best_of}) must not be less than 'n' ({n}).", param="best_of")
    if best_of > n and stream:
        raise invalid_request("'best_of' greater than 'n' cannot be streamed.", param="best_of")
    if prompts * best_of > limits.max_choices:
        raise _too_many_choices("best_of", best_of, prompts, limits)


def _check_several(body: Body, param: str) -> None:
    """Refuse what exists once per request, and so cannot be shared by several choices."""
    fields = body.fields
    modalities = fields.get("modalities")
    if fields.get("audio") is not None or (isinstance(modalities, list) and "audio" in modalities):
        raise invalid_request("Audio output supports only one choice.", param=param, code="unsupported_value")
    if fields.get("prediction") is not None:
        raise invalid_request("'prediction' supports only one choice.", param=param, code="unsupported_value")
    for name in STATE_FIELDS:
        if fields.get(name) not in (None, -1):  # -1: any slot
            message = f"'{name}' refers to state in the upstream, which several choices cannot share."
            raise invalid_request(message, param=name)


def _check_messages(body: Body) -> None:
    if "messages" not in body.fields:
        raise missing("messages")
    messages = body.fields["messages"]
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array", messages)
    if not messages:
        raise empty_array("messages")
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong_type(f"messages.{position}", "an object", message)


def read_prompts(fields: Mapping[str, JSON], param: str) -> tuple[tuple[Prompt, ...], bool]:
    """Read the prompts of a field. Returns them, and whether they came as a list of prompts. [1, 2, 3] is one prompt.

    Raises ApiError 400 for anything but a text, a list of token ids, or a list of either.
    """
    prompt = fields.get(param)
    if prompt is None:
        raise missing(param)
    if isinstance(prompt, str):
        return (prompt,), False
    if not isinstance(prompt, list):
        raise wrong_type(param, "a string or an array", prompt)
    kinds = set(map(type, prompt))
    if kinds == {str}:
        return tuple(cast(list[str], prompt)), True
    if kinds == {list}:
        listed = cast(list[list[JSON]], prompt)
        for tokens in listed:
            _check_tokens(tokens, set(map(type, tokens)), param)
        return tuple(cast(list[list[int]], listed)), True
    _check_tokens(prompt, kinds, param)
    return (cast(list[int], prompt),), False


def _check_tokens(tokens: list[JSON], kinds: set[type], param: str) -> None:
    if not tokens:
        raise empty_array(param)
    if kinds != {int}:  # a bool is no token
        message = (
            f"Invalid '{param}': a string, an array of strings, of token ids, or of arrays of token ids is expected."
        )
        raise invalid_request(message, param=param, code="invalid_type")
    if (lowest := min(cast(list[int], tokens))) < 0:
        raise below(param, lowest, 0)


def _too_many_choices(param: str, width: int, prompts: int, limits: Limits) -> ApiError:
    message = f"Invalid '{param}': {prompts} prompts with {width} choices each are {prompts * width} choices; "
    message += f"at most {limits.max_choices} are allowed."
    return invalid_request(message, param=param, code="integer_above_max_value")
