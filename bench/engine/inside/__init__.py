"""Peers without a server, each in a Python process of its own, asked by lines of JSON.

Each runs as a module with the arguments MODEL THREADS DTYPE. When it has loaded, it prints
{"ready": {package: version}}. It answers a line {"prompts": [[ids]], "n": n, "new": tokens} with a line that has the
fields of an Answer, or with {"wrong": why}. It ends when its standard input ends.
"""
