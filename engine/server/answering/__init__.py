"""From drawn tokens to an answer: parts per choice with their tokens, then deltas and messages, then bytes.

output    tokens to parts
said      what a choice has said so far
writer    deltas and messages; logprobs: what is told of their tokens
answers   the stream, or its fold
best_of   the likeliest of those drawn
"""
