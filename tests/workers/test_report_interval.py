"""Metrics that are told quickly come with each beat, large ones seldom."""

from __future__ import annotations

import pytest

from nproxy.workers.report_interval import ReportInterval


def test_the_first_time_is_now() -> None:
    assert ReportInterval().due(0.0)


@pytest.mark.parametrize(("seconds", "pause"), [(0.003, 0.3), (0.6, 60.0)])
def test_the_pause_grows_with_the_work(seconds: float, pause: float) -> None:
    pace = ReportInterval()
    pace.took(100.0, 100.0 + seconds)
    assert not pace.due(100.0 + seconds + pause * 0.99)
    assert pace.due(100.0 + seconds + pause * 1.01)
