"""The admin port: metrics, status, and servers that announce themselves, leave and are drained.

It knows of a gateway what `Gateway` says, so that it serves one process as it serves the parent of several.
"""
