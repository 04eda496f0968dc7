"""The engine on the CPU: against its peers (python -m bench.engine), over n and lengths (curves), int8 (quality)."""
