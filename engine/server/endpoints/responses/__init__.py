"""The Responses API by the same way as chat: a request becomes a chat, pieces become items and events.

items and request read what is asked, output shapes what is said, turns keeps what later requests may continue from,
writer makes the bytes, endpoint serves.
"""
