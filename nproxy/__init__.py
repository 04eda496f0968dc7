"""nproxy: OpenAI's `n` in front of any LLM server.

The words that the code uses, each with one meaning:

choice, index, delta, chunk, finish_reason, usage: OpenAI's own words.
upstream: a named group of replicas that serve the same models behind one policy.
replica: one base URL of an upstream, or one Unix socket (the built-in engine).
capability: what an upstream can do (native `n` and its width, seed, stream_options ...).
leg: one upstream call made for one client request; it carries `width` choices from `offset` on. run: a leg and its
state. strand: what a leg has said. call: a leg on the wire.
plan: the legs of one request.
conduct: the pure machine that decides; leg and timer events go in, commands come out.
dialect: what differs between chat and legacy completions.
merge: the state machine that turns leg events into what the client sees.
relay: one leg whose bytes pass, watched event by event.
native: an upstream with its own `n`: one leg of width n, through merge.
fan-out: the plan has several legs.
resume: a leg that was cut when the client had read of it goes on in another call.
permit: what a choice holds while it is in flight, against the gateway's limits; what a leg holds of a replica's
`parallel` is one too (`upstreams/`). ledger: who has which of the former, and who waits. desk: where a request asks.
gate: where legs wait for a replica. group: the calls of one request, where that chooses their replica. crowd: legs that
servers have turned away for want of room. visit: a leg on its way to a replica, and there. opening: the room that the
end of a call leaves.
lifeline: by which a call can be given up from outside. company: the other calls that a replica answers beside one.
exchange: one request being answered, as handlers, driver, metrics and log share it. drive: it on its way through the
conduct. lesson: what an answer taught about an upstream.
look: a question whether a replica lives, asked beside its calls. breaker: what keeps calls from one that fails.
lease: for how long a server that registered itself over the admin port is a replica.
parent, worker: the process that keeps a gateway's other processes, and one of those.
caller: who shows a key.
"""

__version__ = "0.1.0.dev0"
