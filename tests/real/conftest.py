"""The product as real processes over the real default model, asked by clients that nproxy's own environment has."""

from tests.real.fixtures import engine_road, fanout_road, logs, road

__all__ = ["engine_road", "fanout_road", "logs", "road"]
