"""The admin port: metrics, status, and servers that announce themselves, leave and are drained.

It uses the gateway only through the interface `Gateway`, so it works for one process and for the parent of several.
"""
