"""Several gateway processes behind one port, and the parent that keeps them.

parent: binds the port, starts the workers, replaces those that die or hang, adds up their metrics; serves no request.
worker: a gateway in a fresh interpreter; accepts from the parent's socket. slot: a worker's place, numbered from 0; one
that is gone is followed by another in its slot. channel: a socket pair between the parent and one worker.
hand-over: a worker leaves its slot to a younger one without failing any request.
"""
