"""From logits to tokens and log probabilities: edits of single tokens' logits, then the distribution, then the draw.

sampler     the entry point: all draws of a step
rules       finds what changes logits before temperature: grammar, allowed tokens, bad words, bias, penalties
edits       applies these changes, in torch
tally       how often a past holds each token, kept from step to step
draw        temperature, min-p, top-k, top-p, and the race of random numbers
highest     the highest values of a row, for top-k and the likeliest tokens
logprobs    log probabilities of the raw logits, ranks and the likeliest tokens
philox      the random numbers
"""
