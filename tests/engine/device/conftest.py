"""The device's road runs here on a CPU, its kernels under Triton's interpreter (tests/engine/kernels/conftest.py)."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
