"""How exact the event loop's timers are."""

ROUNDING = 0.01
"""Seconds that a timer may fire too early."""
