"""bench/gateway/features: each feature is one that this nproxy has, and is what it is called."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bench.gateway.features import KEY, PLAIN, collector, features, main
from bench.gateway.peers import HERE, Scene
from nproxy.config.keys import digest_of
from nproxy.config.loading import Source

FEATURES = features("http://127.0.0.1:4318")


@pytest.mark.parametrize("name", FEATURES)
def test_its_settings_are_valid_and_differ_from_none(name: str, tmp_path: Path) -> None:
    peer, plain = FEATURES[name], FEATURES[PLAIN]
    file = tmp_path / "nproxy.yaml"
    file.write_text((HERE / peer.settings).read_text().replace("$UPSTREAM", "1").replace("$PORT", "2"))
    reading = Source(file, peer.environment()).read()
    config, scene = reading.checked(), Scene(1, 2, file)
    assert config.listen.workers == (2 if name == "workers" else 1)
    assert len(config.upstreams[0].replicas) == (16 if name in ("replicas", "affinity", "resume") else 1)
    assert (config.upstreams[0].balance == "prefix_affinity") == (name == "affinity")
    assert (config.upstreams[0].resume == "replay") == (name == "resume")
    assert {key.hash for key in reading.keys} == ({(digest_of(KEY),)} if name == "keys" else set())
    assert (peer.headers(scene) != plain.headers(scene)) == (name in ("client", "traced", "keys"))
    assert (config.telemetry.otlp_endpoint is not None) == (name == "traces")
    assert (peer.argv(scene) == plain.argv(scene)) == (name != "access log")


def test_the_collector_accepts_traces() -> None:
    with collector() as url:
        for _ in range(2):
            assert httpx.post(f"{url}/v1/traces", content=b"spans").status_code == 200


def test_a_feature_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "keys,locks"])
    assert "there is no locks; there are nothing, " in capsys.readouterr().err
