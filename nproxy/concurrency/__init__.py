"""What asyncio lacks and several layers need: coroutines beside a block, a race of coroutines, threads that may hang.

Each layer above may use it; it knows nothing of HTTP, of servers or of requests.
"""
