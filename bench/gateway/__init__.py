"""Compares the gateway with other gateways: requests, chunks, CPU time, first text and memory, on a core of its own."""
