"""Runs test files that take long first: started last, one would keep its process busy after the others have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.real.processes import ROOT

LONG = (
    "tests/bench/test_verify.py",
    "tests/real/test_workers.py",
    "tests/engine/device/test_runner.py",
    "tests/engine/test_seeds.py",
    "tests/engine/test_deterministic.py",
    "tests/engine/test_cpu_runner.py",
    "tests/engine/test_server.py",
    "tests/docs/test_pages.py",
    "tests/engine/test_random_walk.py",
    "tests/engine/test_library.py",
    "tests/engine/kernels/test_attn_items.py",
    "tests/real/test_openai_python.py",
    "tests/real/test_documents.py",
    "tests/real/test_lifecycle.py",
    "tests/load/test_bars.py",
    "tests/engine/kernels/test_compiled.py",
    "tests/cli/test_engine_child.py",
    "tests/engine/test_structured.py",
    "tests/conformance/test_l_m_n_limits.py",
    "tests/engine/test_joint.py",
    "tests/real/test_examples.py",
    "tests/cli/test_serving.py",
    "tests/engine/device/test_sampler.py",
    "tests/engine/test_main.py",
    "tests/engine/test_probe.py",
    "tests/system/test_fleet.py",
    "tests/system/test_transformers_serve.py",
    "tests/system/test_prometheus.py",
    "tests/system/native/test_attention.py",
    "tests/system/native/test_kernels.py",
    "tests/system/test_slowhttptest.py",
    "tests/system/test_bench_gateway.py",
)
"""Files that take half a minute or more while two others run, the longest first."""


def longest_first(items: Iterable[pytest.Item], long: Sequence[str] = LONG) -> list[pytest.Item]:
    """The tests, with those of the long files first; otherwise in their order."""
    place = {str(ROOT / path): number for number, path in enumerate(long)}
    return sorted(items, key=lambda item: place.get(str(item.path), len(place)))
