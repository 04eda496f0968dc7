"""`nproxy models`: lists the models on this machine, fetches and removes them.

options   the commands as click defines them; imports nothing slow
command   list, pull, remove
"""
