"""From an Order to what the core takes: tokens, limits and a grammar; in threads, off the event loop.

prompts                    texts and chats to tokens
rendering, roles           messages in the model's template, with roles that it knows
tools_in_words             tools for templates without them
constraints, call_rules    the grammar of answers that must be calls or match a structure
compiling, grammar_trial   a grammar is tried in a process of its own
embedding_inputs, pooling  inputs of embeddings to tokens; how hidden states become a vector
"""
