"""What the gateway tells about itself: metrics and logs. Called by gateway and upstreams, imports neither."""
