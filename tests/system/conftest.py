"""Tests that need tools from outside pip's world of nproxy; `make test-system` installs them first."""

from tests.real.fixtures import engine_road, fanout_road, logs, road

__all__ = ["engine_road", "fanout_road", "logs", "road"]
