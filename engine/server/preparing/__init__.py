"""From an Order to what the core takes: tokens, limits and a grammar; in threads, off the event loop.

prompts           texts and chats to tokens
rendering, words  messages as the model's template takes them, or told in words
holding, calling  the grammar of answers that must be calls
compiling, trial  a grammar tried in a process of its own
pooling           how hidden states become embeddings
"""
