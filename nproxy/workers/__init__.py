"""Several gateway processes behind one port, and the parent that manages them.

parent: binds the port, starts the workers, replaces those that die or hang, adds up their metrics; serves no requests.
worker: a gateway in a fresh interpreter; accepts connections from the parent's socket.
slot: the place of a worker, numbered from 0; when a worker is gone, another one takes its slot.
channel: a socket pair between the parent and one worker.
hand-over: a worker leaves its slot to a newer one without failing any request.
"""
