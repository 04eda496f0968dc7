"""HTTPS: what is shown, what is refused, and how certificates change while it is served."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from nproxy.config import Config, ConfigError, load
from nproxy.gateway.serve import Running, running
from nproxy.gateway.tls import ServedCertificate
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, body, upstream_settings
from tests.gateway.raw import apart
from tests.gateway.secure import address, put, secure, trust


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def config(authority: trustme.CA, upstream: FakeUpstream, tmp_path: Path) -> Config:
    return Config.model_validate(secure(authority, upstream, tmp_path))


@pytest.fixture
async def gateway(config: Config) -> AsyncIterator[Running]:
    async with running(config, header_seconds=0.5) as started:
        yield started


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    return trust(authority)


async def shown(gateway: Running, context: ssl.SSLContext) -> tuple[bytes, ssl.SSLObject]:
    """The certificate of a new connection."""
    _, writer = await asyncio.open_connection(*address(gateway), ssl=context)
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.close()
    return found.getpeercert(binary_form=True) or b"", found


async def test_its_end_is_told(gateway: Running, trusting: ssl.SSLContext) -> None:
    _, found = await shown(gateway, trusting)
    async with httpx.AsyncClient(base_url=gateway.url, verify=trusting, trust_env=False) as client:
        told = (await client.get("/metrics")).text
    ends = ssl.cert_time_to_seconds(found.getpeercert()["notAfter"])  # type: ignore[index,arg-type]  # verified: it is there
    assert float(told.rpartition("nproxy_tls_certificate_expiry_timestamp_seconds ")[2].split()[0]) == ends


async def test_one_that_has_expired_is_told(
    authority: trustme.CA, config: Config, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert config.listen.tls is not None
    served = ServedCertificate(config.listen.tls)
    assert not caplog.records
    put(tmp_path, authority.issue_cert("127.0.0.1", not_after=datetime(2021, 2, 3, tzinfo=UTC)))
    served.change(config.listen.tls)
    (record,) = caplog.records
    assert record.getMessage() == "clients will refuse the certificate: it has expired"
    assert vars(record)["fields"] == {"expired": "2021-02-03T00:00:00+00:00"}


async def test_it_is_served(gateway: Running, trusting: ssl.SSLContext) -> None:
    assert gateway.url.startswith("https://")
    async with httpx.AsyncClient(base_url=gateway.url, verify=trusting, trust_env=False) as client:
        answer = await client.post(CHAT, json=body(n=3))
        assert len(answer.json()["choices"]) == 3
        streamed = await client.post(CHAT, json=body(n=3, stream=True))
        assert streamed.text.endswith("data: [DONE]\n\n")


def test_what_the_systems_settings_may_allow_is_not_left_to_them(config: Config) -> None:
    assert config.listen.tls is not None
    context = ServedCertificate(config.listen.tls).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION in context.options


async def test_the_protocols_are_modern(gateway: Running, trusting: ssl.SSLContext) -> None:
    trusting.set_alpn_protocols(["h2", "http/1.1"])
    _, connection = await shown(gateway, trusting)
    assert (connection.version(), connection.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await shown(gateway, trusting))[1].version() == "TLSv1.2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_protocols_are_refused(gateway: Running, trusting: ssl.SSLContext) -> None:
    trusting.set_ciphers("ALL:@SECLEVEL=0")
    trusting.minimum_version = trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(gateway, trusting)


async def test_changed_files_are_shown_to_new_connections(
    gateway: Running, config: Config, authority: trustme.CA, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, verify=trusting, trust_env=False) as standing:
        assert (await standing.get("/health")).status_code == 200
        first, _ = await shown(gateway, trusting)
        put(tmp_path, authority.issue_cert("127.0.0.1"))
        gateway.app.reconfigure(config)
        second, _ = await shown(gateway, trusting)
        assert second != first
        put(tmp_path, authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1"))
        with pytest.raises(ConfigError, match=r"key\.pem: belongs to another certificate"):
            gateway.app.reconfigure(config)
        assert (await shown(gateway, trusting))[0] == second
        (tmp_path / "key.pem").unlink()
        before = (gateway.app.config, gateway.app.settings.edge, gateway.app.upstreams.all)
        with pytest.raises(ConfigError, match="cannot read"):
            gateway.app.reconfigure(config.model_copy(update={"upstreams": ()}))
        assert (gateway.app.config, gateway.app.settings.edge, gateway.app.upstreams.all) == before, "all or nothing"
        assert (await shown(gateway, trusting))[0] == second
        assert (await standing.get("/health")).status_code == 200
        assert len(gateway.http.connections) == 1, "that which stood is still the same"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("certificate: gone", "3: listen.tls.certificate: cannot read"),
        ("key: gone", "4: listen.tls.key: cannot read"),
        ("key: other", "4: listen.tls.key: belongs to another certificate"),
        ("certificate: no PEM", "3: listen.tls.certificate: cannot be used with its key"),
        ("key: encrypted", "3: listen.tls.certificate: cannot be used with its key"),
    ],
)
def test_a_pair_that_cannot_be_used_is_told_at_its_line(
    authority: trustme.CA, tmp_path: Path, spoil: str, problem: str
) -> None:
    put(tmp_path, authority.issue_cert("a"))
    key, other = tmp_path / "key.pem", authority.issue_cert("b").private_key_pem.bytes()
    match spoil:
        case "certificate: gone":
            (tmp_path / "chain.pem").unlink()
        case "key: gone":
            key.unlink()
        case "key: other":
            key.write_bytes(other)
        case "certificate: no PEM":
            (tmp_path / "chain.pem").write_text("text")
        case "key: encrypted":
            from cryptography.hazmat.primitives import serialization as form

            parsed = form.load_pem_private_key(key.read_bytes(), None)
            cipher = form.BestAvailableEncryption(b"password")
            key.write_bytes(parsed.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, cipher))
    file = tmp_path / "nproxy.yaml"
    file.write_text("listen:\n  tls:\n    certificate: chain.pem\n    key: key.pem\n")
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert str(raised.value).startswith(f"{file}:{problem}")


# What is not TLS, and what is TLS elsewhere


async def closed(where: tuple[str, int], sent: bytes) -> bytes:
    """What comes until the connection is closed, however."""
    reader, writer = await asyncio.open_connection(*where)
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "sent", [b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01"]
)
async def test_what_is_no_handshake_is_closed_without_a_word_in_the_log(
    gateway: Running, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    assert b"HTTP" not in await closed(address(gateway), sent)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_handshake_that_does_not_come_is_not_waited_for(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    assert await closed(address(gateway), b"") == b""
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_TLS_on_the_plain_port_is_400(upstream: FakeUpstream) -> None:
    plain: dict[str, Any] = {"listen": {"port": 0}, "upstreams": [upstream_settings(upstream)]}
    async with running(Config.model_validate(plain)) as gateway:
        host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="h")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        status, _, content = apart(await closed((host, int(port)), outgoing.read()))
        assert status == 400
        assert json.loads(content)["error"]["type"] == "invalid_request_error"
