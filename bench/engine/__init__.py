"""The engine on the CPU: beside its peers (python -m bench.engine), over n and lengths (curves), in int8 (quality)."""
