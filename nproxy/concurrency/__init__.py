"""What asyncio lacks: coroutines beside a block, races of them, work done once for all who ask, threads that may hang.

Each layer above may use it; it knows nothing of HTTP, of servers or of requests.
"""
