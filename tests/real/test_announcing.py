"""An engine of its own comes to a gateway that began without any server, serves, and goes."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from tests.real.metrics import wait_for
from tests.real.processes import nproxy, server

REPLICAS = "/admin/upstreams/fleet/replicas"


@pytest.mark.model
def test_an_engine_announces_itself_and_says_goodbye(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", "canary-58aa")
    admin_port, port, settings = free_port(), free_port(), tmp_path / "nproxy.yaml"
    upstreams = "[{name: fleet, replicas: [], wire: exact}]"
    settings.write_text(f"admin: {{port: {admin_port}, token: '${{ADMIN}}'}}\nupstreams: {upstreams}\n")
    admin = httpx.Client(
        base_url=f"http://127.0.0.1:{admin_port}", headers={"authorization": "Bearer canary-58aa"}, trust_env=False
    )
    argv = [sys.executable, "-m", "engine", str(default_model), "--port", str(port), "--served-model-name", "small"]
    argv += ["--register", f"http://127.0.0.1:{admin_port}{REPLICAS}", "--register-token", "${ADMIN}"]
    argv += ["--advertise", f"http://127.0.0.1:{port}/v1"]

    def announced() -> list[str]:
        return [replica["replica"] for replica in admin.get(REPLICAS).json()["replicas"]]

    with admin, nproxy("--config", str(settings), log=tmp_path / "gateway.log", ready="/health") as gateway:
        with server(argv, port=port, log=tmp_path / "engine.log", ready="/ready") as engine:
            wait_for(lambda: announced() == [engine.v1], seconds=20, what="the engine on the gateway's list")
            body = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 4}
            answer = httpx.post(f"{gateway.v1}/chat/completions", json=body, timeout=60, trust_env=False)
            assert len(answer.json()["choices"]) == 3, answer.text
        assert announced() == []
    for log in ("gateway.log", "engine.log"):
        assert "canary-58aa" not in (tmp_path / log).read_text()
