"""From drawn tokens to an answer: parts per choice with their tokens, then deltas and messages, then bytes.

output       tokens to parts
choice_text  what a choice has said so far
writer       deltas and messages
logprobs     log probabilities in the API's formats
answers      the stream, or its fold
best_of      the likeliest of the drawn choices
"""
