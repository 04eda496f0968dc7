"""OpenAI's wire format as plain values and pure functions: the layer on which all others are built.

body        a JSON request body: parsed once, kept exact, spliced into the bodies of upstream calls
requests    what nproxy must know of a request, validated (`parse_chat`, `parse_completion`)
refusals    the errors for refused fields
errors      `ApiError` and OpenAI's error envelope; foreign errors wrapped into it
sse         bytes to server-sent events, incrementally
chunks      an upstream's stream chunk or whole answer as a value
rewriter    usual chunks rewritten as bytes, without parsing
tools       tool calls in deltas: indices from 0 in every choice, ids and names once
usage       token counts, and the rules by which several become one
wire        the one writer of what a client reads
dialect     what differs between chat and legacy completions
jsonvalue   exact JSON in, compact JSON out

No IO, no clock, no randomness: ids and times are arguments.
"""
