"""Kernels run here under Triton's interpreter, on a CPU: fp32 and fp16 (its bf16 is wrong), small shapes.

Triton reads the variable when a kernel is defined, so it is set before any kernel is imported. What needs the compiler
runs in a process of its own, without the variable.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
