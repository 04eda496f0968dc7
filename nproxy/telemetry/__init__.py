"""What the gateway reports about itself: metrics, logs and traces.

Gateway and upstreams call this package; it imports neither.
"""
