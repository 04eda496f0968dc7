"""What a chat model writes, taken apart: content, reasoning and tool calls. Sans-IO, one parser per choice.

A family is a way to write these: its marks in the text, and the special tokens that have to be shown as text
for a parser to see them. A parser takes text in any pieces and gives parts; whatever the pieces, the joined parts
are the same.
"""
