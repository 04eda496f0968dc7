"""What a client asks for: a request's fields, each honoured or refused by its name, become an Order.

order               the whole of it
fields              which fields there are, and which values of others ask for nothing
harmless            fields that do not change the answer
choice_options      the options of each choice
sampling            how a choice's tokens are drawn
output_options      what is returned about tokens
structure           the form that an answer must have
schema_annotations  what a schema says beside its meaning
schema_numbers      which integers of a schema cannot be enforced
schema_strictness   which properties the objects of a schema may have
chat, tools         messages, tools and calls
salt                which requests share computed prompts
members             typed access to an object's members
"""
