"""From logits to tokens and log probabilities: edits of single tokens' logits, then the distribution, then the draw.

sampler     the room's door: what a step's draws come to
rules       what changes logits before temperature, found: grammar, allowed tokens, bad words, bias, penalties
edits       these changes done, in torch
tally       how often a past holds each token, kept from step to step
draw        temperature, min-p, top-k, top-p, and the race of random numbers
highest     the highest of a row, as top-k and the likeliest tokens need them
logprobs    log probabilities of the raw logits, ranks and the likeliest tokens
"""
