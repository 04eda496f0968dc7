"""OpenAI's wire format as plain values and pure functions: the layer on which all others are built.

body             a JSON request body: parsed once, kept exact, spliced into the bodies of upstream calls
requests         what nproxy must know of a request, validated (`parse_chat`, `parse_completion`)
choice_params    sampling parameters of each choice, an extension of the request
typed            a JSON object read into a pydantic model, its faults worded as OpenAI does
encoding         a request's body decoded, up to a limit
request_id       which request ids of a client are used
refusals         the errors for refused fields
errors           `ApiError` and OpenAI's error envelope; foreign errors wrapped into it
in_band          an error in place of an answer, within a 200
sse              bytes to server-sent events, incrementally
stream_reading   what an event is: a chunk, an error in place of one, the end, or nothing
chunks           an upstream's stream chunk or whole answer as a value
unread           long log probabilities and the like, passed on as they came
rewriter         usual chunks rewritten as bytes, without parsing
templates        the bytes around the few values that differ between the chunks of a choice
template_making  templates made of chunks, and proved
places           where the values of a chunk are, in what was parsed and in its bytes
tools            tool calls in deltas: indices from 0 in every choice, ids and names once
usage            token counts, and the rules by which several become one
passed_usage     the token counts in an answer that is passed through, found in its bytes
wire             the one writer of what a client reads
dialect          what differs between chat and legacy completions
jsonvalue        exact JSON in, compact JSON out
frozen           dataclasses that nothing may change, as the type checker sees to

No IO, no clock, no randomness: ids and times are arguments.
"""
