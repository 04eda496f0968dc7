"""`nproxy models`: what lies on this machine, what is to come, and what may go.

options   the commands, as click knows them; imports nothing that takes time
command   list, pull, remove
"""
