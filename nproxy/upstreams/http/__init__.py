"""The house's HTTP/1.1 client: what calls of upstreams need of it, and no more.

`message.py` and `head.py` know bytes and no socket; `connection.py` joins them to one; `connecting.py` opens it,
`connections.py` keeps it for the next call. No redirects, cookies, proxies, compression or upgrades (ADR 0037).
"""
