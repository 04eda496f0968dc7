"""What the log says, as a gateway starts, of upstreams that do not answer: most often their address is wrong."""

from __future__ import annotations

import logging

import pytest

from nproxy.gateway.serve import look_for_upstreams
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import gateway_for, upstream_settings


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/v1", "The upstream 'gone' could not be reached: connection refused."),
        ("https://{there}/v1", "The upstream 'gone' could not be reached over trusted TLS: wrong version number."),
    ],
)
async def test_why_it_does_not_answer(
    upstream: FakeUpstream, caplog: pytest.LogCaptureFixture, url: str, why: str
) -> None:
    gone = {"name": "gone", "replicas": [url.format(there=f"127.0.0.1:{upstream.port}")]}
    async with gateway_for({"upstreams": [upstream_settings(upstream), gone]}) as gateway:
        with caplog.at_level(logging.WARNING, "nproxy.gateway"):
            await look_for_upstreams(gateway.app)
    [told] = [record for record in caplog.records if record.getMessage() == "upstream does not answer"]
    fields = vars(told)["fields"]
    assert (fields["upstream"], fields["why"]) == ("gone", why)
