"""Splits what a chat model writes into content, reasoning and tool calls. Sans-IO, one parser per choice.

A family is a syntax for these: its marks in the text, and the special tokens that must be shown as text for a parser to
see them. A parser takes text in any pieces and returns parts; whatever the pieces, the joined parts are the same.
"""
