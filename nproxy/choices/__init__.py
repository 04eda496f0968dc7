"""The middle of the gateway: n choices from one plan, pure, without IO, clock or randomness.

Events go in, commands come out: read plan, conduct, merge and commands first.

plan            the legs of a request, decided before the first call
capability      what an upstream can do for one model, as plans rely on it
leg             one upstream call, and which choices it brings
seeds           the seed of each leg
compose         the body of a leg's call: the client's bytes with a few fields spliced in
events          what the driver reports
commands        what the driver is to do
conduct         decides: which legs are open, what follows from an event, when the request is over
settings        what a request is conducted by
warming         legs that wait until the first one has computed the prompt
roster          the legs of a request, each in a state
states          the states of a leg, and what may follow which
output_buffer   all output of one turn in one write; pings

segments        the bytes of a streamed answer as the events of its leg
reading         what a leg sent, parsed; if it cannot be an answer, the leg has failed
bodies          whole bodies read as the chunks of a stream
merging         which kind of merge a request gets
merge           the answers of the legs become the answer of the client
relay           one leg, whose bytes are passed on
best_of         more choices drawn than shown
copies          one choice shown n times
leg_outputs     what all legs have brought, and which of them brings which choice
leg_output      what one leg has sent
fold            deltas of one choice become the choice of a whole answer
offsets         text offsets that run on through the chunks of a choice
reported_usage  token counts as one leg reports them
tally           token counts of all legs, for the client and for the metrics

failure_table   what follows from a failure, by its kind or status
failures        which of several failures the client is told of
recovery        another way to what a leg failed to bring
retry           whether and when a call is made again
remedies        a call that asks for less, by what a refusal says
lessons         what an answer teaches about its upstream
learning        what one request teaches while it runs
resume          how a leg that was cut is continued: by one of
replay          the same call again, of which what the client has is swallowed
continuation    a call that has what the client has as its prefix
records         what the client has been sent of a choice, for both
"""
