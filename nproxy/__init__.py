"""nproxy: a gateway that gives any LLM server OpenAI's `n` parameter.

This glossary defines the words that the code uses. Each word has one meaning. `choice`, `index`, `delta`, `chunk`,
`finish_reason` and `usage` mean what they mean in OpenAI's API. ADR numbers refer to docs/adr.

One client request (choices/)

anomaly: something odd that a server did and nproxy corrected; the metrics count it by kind.
command: what the conduct tells the driver to do: open a leg, cancel a leg, set a timer, write bytes, finish.
compose: to make the body of a leg's call: the client's bytes with a few fields spliced in.
conduct: the pure state machine of one request, with events in and commands out; it makes all decisions and does no IO.
dialect: the form of a generation request: chat completions or legacy completions.
event: what the driver reports to the conduct: something that a call brought, its end or failure, or a timer that fired.
fan-out: the mode of a plan with several legs.
leg: one upstream call made for one client request; it brings `width` choices from index `offset` on, and keeps its
number if the call is repeated.
LegOutput: what one leg has said so far; LegOutputs holds them, and knows which leg brings which choice.
LegRun: a leg with its state and its attempts so far.
lesson: a fact about an upstream that an answer taught, kept for later plans.
merge: the state machine that turns the answers of all legs into the one answer that the client reads.
native: the mode of a plan with one leg for all n choices, whose answer goes through merge because it may need
corrections.
OutputBuffer: it joins everything that goes to the client in one turn into one write, and sends a ping if nothing did.
plan: the legs of one request, decided before the first call.
recovery: what is tried after a leg failed: the same call again, one that asks for less, or one that continues it.
relay: the mode of a plan with one leg whose bytes are passed on; merge only watches them.
resume: to continue, in another call, a leg that was cut after the client had read a part of it (ADR 0025).
roster: all legs of one request with their states; only the roster changes a state.
warming: at an upstream with a prompt cache, the first leg runs alone until it has computed the prompt (ADR 0011).

Servers (upstreams/)

account: the calls of one upstream that a server may limit together: those for one model and with one key.
breaker: the circuit breaker of a replica; it keeps calls away from a replica whose calls fail (ADR 0046).
call: one HTTP request to a replica; a leg makes one, and another one for each retry.
CallAttempt: one try to call a replica: why it was admitted, and how it ended.
CallGroup: the calls that one client request makes at one upstream, with what they share when replicas are chosen.
CancelHandle: it ends a call from outside while the call waits for its upstream.
capability: what an upstream can do for one model: its widest `n`, seeds, stream_options, lists of prompts ...
ConcurrentCalls: it tells whether another call at the same replica may have interrupted this one.
FreedSlot: the capacity that the end of a call leaves at a replica, for which a waiting leg may be admitted.
gate: the part of an upstream that knows its replicas and gives each leg a slot of one of them.
health check: a request that asks whether a replica is alive, apart from the calls; a look is the same thing.
lease: the time for which a server that registered itself over the admin port counts as a replica (ADR 0027).
OverloadQueue: the fair queue of the legs of one account that a full server has refused (ADR 0049).
probe: a call that a waiting leg makes to find out whether a full server has more capacity. The command `nproxy probe`
is something else: it finds out what a server can do.
registry: the servers that registered themselves, and the addresses that are being drained.
release delay: the time between the end of an answer and the moment when the server counts the call as ended.
replica: one server of an upstream: one base URL, or one Unix socket (the built-in engine).
ReplicaCall: the call of a replica as a leg holds it, from the wait for a slot until the slot is given back.
retry budget: the limit on retries at one upstream: a share of its calls of the last ten seconds, and ten a second.
slot: one of the `parallel` calls that a replica may have at once.
upstream: a named group of replicas that serve the same models under the same settings.

Admission (gateway/admission/, ADR 0028)

AdmissionClient: where a request asks for permits, waits for them and returns them; each process has one.
AdmissionServer: the ledger at work, with a clock; it runs in the parent if there are several workers.
caller: the client as its API key identifies it, with the name and the limits of that key.
grant: the permits of one admitted request, and the tokens that it has to account for.
ledger: the pure record of all permits of the gateway: who holds them, who waits for them in a fair queue, and how much
each key has used of its rates per minute.
permit: the right to be in flight, which each choice holds against the limits of the gateway.

The gateway and its processes (gateway/, workers/)

drive: one request on its way through the conduct at one upstream.
driver: the code that carries out the commands of the conduct and reports what happens as events.
exchange: one client request and its answer, as handlers, driver, metrics and log share it.
fallback: another upstream that gets the request if the first one cannot answer it (ADR 0050).
inbox: where the events of all legs of a request wait for the conduct.
parent: the process that holds the port and starts, watches and replaces the workers (ADR 0030).
pseudonym: the random name by which a gateway recognizes itself in `Via` headers, which shows loops.
RoutedRequest: one client request as it is sent to one upstream; a fallback makes another.
worker: one of several gateway processes that serve the same port.

The built-in engine (engine/)

backend: a device, the kernels that run on it, and the number type of weights, keys and values.
chunk: a stretch of one prompt that a step computes; in the engine it is no piece of a stream.
core: the process that holds the model and runs the steps; the engine's server process talks to the clients.
draw: one token to be sampled from one row of logits.
group: n choices over one prompt.
KV span: a range of key positions that some rows of a step read together.
row: one decoding sequence in a step.
sequence: the tokens of one choice, prompt included, with the table of its KV blocks.
step: one pass of a batch of chunks and rows through the model.
"""

__version__ = "0.1.0.dev0"
