"""Peers without a server, each in a Python of its own, asked by lines of JSON.

Each is run as a module, with the words MODEL THREADS DTYPE: when it has loaded it says {"ready": {package: version}}. A
line {"prompts": [[ids]], "n": n, "new": tokens} is answered by one with the fields of an Answer, or {"wrong": why}. It
ends with its standard input.
"""
