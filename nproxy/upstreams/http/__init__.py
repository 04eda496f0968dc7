"""nproxy's own HTTP/1.1 client: what calls to upstreams need, and nothing else.

`message.py` and `head.py` work on bytes without sockets. `reply.py` is an answer as it arrives, `connection.py` the
socket on which it does. `connecting.py` opens connections, `connections.py` keeps them for the next call. There are no
redirects, cookies, proxies, compression or upgrades (ADR 0037).
"""
