"""What a client asks for: a request's fields, each honoured or refused by its name, become an Order.

order        the whole of it
fields       which fields there are, and what becomes of those that ask for nothing
wishes       what each choice is to be; sampling: how its tokens are drawn
telling      what is told of tokens
structure    the form that an answer must have
chat, tools  messages, tools and calls
salt         who shares computed prompts
members      typed access to an object's members
"""
