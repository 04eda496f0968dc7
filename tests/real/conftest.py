"""Tests against real servers that need nothing but pip."""

from tests.real.fixtures import engine_road, fanout_road, logs, road, smollm2_folder, transformers_server

__all__ = ["engine_road", "fanout_road", "logs", "road", "smollm2_folder", "transformers_server"]
