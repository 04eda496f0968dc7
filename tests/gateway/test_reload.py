"""Settings that change while they are served: good ones at once and whole, bad ones not at all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nproxy.concurrency.daemon_thread import in_daemon_thread
from nproxy.config import Reading, Source, Watch
from nproxy.gateway import open_port, reload
from nproxy.gateway.reload import History, Reload, Reloader
from nproxy.gateway.serve import follow, serve, use
from nproxy.openai.jsonvalue import dumps
from nproxy.telemetry import logs
from nproxy.telemetry.metrics import Metrics
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.conftest import Stream, body, envelope, upstream_settings
from tests.gateway.raw import apart, post
from tests.gateway.reloading import Following, following, under_streams, write
from tests.waiting import until

CANARY = "canary-90d2"


@pytest.fixture
def settings(upstream: FakeUpstream) -> dict[str, Any]:
    return {"listen": {"port": 0}, "upstreams": [upstream_settings(upstream)]}


@pytest.fixture
async def gateway(settings: dict[str, Any], tmp_path: Path) -> AsyncIterator[Following]:
    async with following(tmp_path / "nproxy.yaml", settings) as gateway:
        yield gateway


@pytest.fixture
async def held(gateway: Following, upstream: FakeUpstream) -> asyncio.Task[Stream]:
    """A stream of two choices that stands still in its middle until the upstream's `go_on` is set."""
    upstream.behaviour = Behaviour(hold_after=2)
    asked = asyncio.create_task(gateway.stream(n=2, seed=1))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    return asked


async def test_limits_change_at_once(gateway: Following, settings: dict[str, Any]) -> None:
    assert (await gateway.ask(n=3)).status_code == 200
    reload = await gateway.reload({**settings, "n_policy": {"max_n": 2, "greedy": "reject"}})
    assert (reload.outcome, reload.changed) == ("applied", ("n_policy",))
    assert envelope(await gateway.ask(n=3))["param"] == "n"
    assert (await gateway.ask(n=2, temperature=0)).status_code == 400
    assert (await gateway.ask(n=2)).status_code == 200


async def test_a_request_keeps_the_settings_it_began_with(gateway: Following, settings: dict[str, Any]) -> None:
    """Also those that it reads when all of its body is here."""
    content = dumps(body(n=3, temperature=0))
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b"", f"Content-Length: {len(content)}") + content[:10])
    while gateway.app.inflight == 0:
        await asyncio.sleep(0.01)
    await gateway.reload({**settings, "n_policy": {"max_n": 2, "greedy": "reject"}, "limits": {"body_mib": 0.00001}})
    writer.write(content[10:])
    async with asyncio.timeout(10):
        status, _, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert status == 200
    assert (await gateway.ask(n=2)).status_code == 413


async def test_everything_that_a_request_reads_is_the_new(gateway: Following, settings: dict[str, Any]) -> None:
    assert (await gateway.client.post("/v1/embeddings", json={"model": MODEL})).status_code == 200
    changed = {
        **settings,
        "passthrough": {"paths": ["/other"]},
        "telemetry": {"metrics": False},
        "limits": {"body_mib": 0.001},
        "listen": {"port": 0, "cors_origins": ["https://page.example"]},
    }
    assert (await gateway.reload(changed)).outcome == "applied"
    assert (await gateway.client.post("/v1/embeddings", json={"model": MODEL})).status_code == 404
    assert (await gateway.client.get("/other")).status_code == 200
    assert (await gateway.client.get("/metrics")).status_code == 404
    assert (await gateway.ask(user="x" * 2000)).status_code == 413
    shown = await gateway.client.get("/v1/models", headers={"origin": "https://page.example"})
    assert shown.headers["access-control-allow-origin"] == "https://page.example"


async def test_admission_has_other_limits_at_once(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream, held: asyncio.Task[Stream]
) -> None:
    narrow = {"limits": {"inflight_choices": 2, "queue_seconds": 0}, "n_policy": {"max_n": 2}}
    await gateway.reload({**settings, **narrow})
    assert (await gateway.ask(n=2)).status_code == 429
    upstream.behaviour.go_on.set()
    assert (await held).done
    assert (await gateway.ask(n=2)).status_code == 200


async def test_log_lines_have_another_form_at_once(
    gateway: Following, settings: dict[str, Any], tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    loggers = [logging.getLogger(name) for name in ("nproxy", "aiohttp")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    logs.configure("info", "json", fd)
    try:
        for form in ("json", "text"):
            await gateway.reload({**settings, "telemetry": {"log_format": form}})
            await gateway.ask()
        loggers[0].handlers[0].flush()
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
        os.close(fd)  # its number is soon a socket's, which a handler that is left would write to
    first, *_, last = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("{")
    assert " info    chat/completions request_id=" in last


def write_keys(file: Path, *shown: str) -> None:
    entries = [
        {"name": f"k{at}", "hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"} for at, key in enumerate(shown)
    ]
    write(file, {"keys": entries})


async def status(gateway: Following, key: str) -> int:
    return (await gateway.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code


async def test_keys_come_and_go(gateway: Following, settings: dict[str, Any]) -> None:
    file = gateway.file.with_name("keys.yaml")
    write_keys(file, "one")
    closed = {**settings, "auth": {"api_keys_file": "keys.yaml"}}
    assert (await gateway.reload(closed)).outcome == "applied"
    assert [await status(gateway, key) for key in ("one", "two")] == [200, 401]
    write_keys(file, "two")
    reload = await gateway.reload(closed)
    assert (reload.outcome, reload.changed) == ("applied", (str(file),)), (
        "the file of keys changed, though not its name"
    )
    assert [await status(gateway, key) for key in ("one", "two")] == [401, 200]
    assert (await gateway.reload(closed)).outcome == "unchanged"
    file.write_text("keys: []")
    assert (await gateway.reload(closed)).outcome == "refused"
    assert [await status(gateway, key) for key in ("one", "two")] == [401, 200]


async def test_a_stream_goes_on_at_an_upstream_that_is_gone(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream, held: asyncio.Task[Stream]
) -> None:
    async with FakeUpstream() as other:
        await gateway.reload({**settings, "upstreams": [upstream_settings(other, name="other")]})
        answer = await gateway.ask(n=2)
        assert answer.headers["x-nproxy-upstream"] == "other"
        assert len(other.calls) == 2
        upstream.behaviour.go_on.set()
        assert (await held).done
        assert await gateway.metric('nproxy_inflight_legs{upstream="fake"}') == 0


async def test_a_stream_goes_on_when_its_replica_is_no_longer_listed(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream, held: asyncio.Task[Stream]
) -> None:
    async with FakeUpstream() as other:
        moved = upstream_settings(upstream, replicas=[other.url])
        await gateway.reload({**settings, "upstreams": [moved]})
        assert (await gateway.ask(n=3)).status_code == 200
        assert (len(upstream.calls), len(other.calls)) == (2, 3)
        upstream.behaviour.go_on.set()
        assert (await held).done


async def test_names_become_labels(gateway: Following, settings: dict[str, Any], upstream: FakeUpstream) -> None:
    renamed = upstream_settings(upstream, name="renamed", models={"alias": MODEL})
    await gateway.reload({**settings, "upstreams": [renamed]})
    assert (await gateway.ask(model="alias", n=2)).status_code == 200
    labels = 'code="200",endpoint="chat/completions",mode="fanout",model="alias",upstream="renamed"'
    assert await gateway.metric(f"nproxy_requests_total{{{labels}}}") == 1


async def test_what_was_learned_is_kept_where_the_upstream_stays(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream
) -> None:
    learning = upstream_settings(upstream, n="auto")
    await gateway.reload({**settings, "upstreams": [learning]})
    await gateway.ask(n=3)
    known = gateway.app.upstreams.all[0].capabilities.known()
    assert known
    await gateway.reload({**settings, "upstreams": [learning], "stream": {"ping_seconds": 5}})
    assert gateway.app.upstreams.all[0].capabilities.known() == known


BAD = {
    "no YAML": "listen: [",
    "unknown key": "listne: {}",
    "a file that is not there": "auth: {api_keys_file: gone.yaml}",
    "a secret that is not there": "admin: {token: 'file:gone'}",
    "empty": "",  # the default engine: what starts with nothing is not what is served
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_bad_settings_change_nothing(
    gateway: Following, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    before = gateway.app.config
    reload = await gateway.reload(bad)
    assert reload.outcome == "refused"
    assert gateway.app.config is before
    assert (await gateway.ask(n=2)).status_code == 200
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == [f"settings were not reloaded: {problem}" for problem in reload.problems]
    assert str(gateway.file.parent) in logged[0]
    assert await gateway.metric("nproxy_config_reload_success") == 0
    told = (await gateway.client.get("/status")).json()["settings"]["last_reload"]
    assert (told["outcome"], told["problems"]) == ("refused", [*reload.problems])

    assert (await gateway.reload(settings)).outcome == "unchanged"
    assert await gateway.metric("nproxy_config_reload_success") == 1
    assert await gateway.metric('nproxy_config_reloads_total{outcome="refused"}') == 1
    assert await gateway.metric('nproxy_config_reloads_total{outcome="unchanged"}') == 1


async def test_a_file_that_is_gone_changes_nothing(gateway: Following) -> None:
    gateway.file.unlink()
    assert (await gateway.reloader.reload()).outcome == "refused"
    assert (await gateway.ask(n=2)).status_code == 200


@pytest.mark.parametrize("left", ["", "\n", "# all is gone\n", "{}"])
async def test_a_file_that_has_lost_everything_changes_nothing(gateway: Following, left: str) -> None:
    """Empty settings can be valid, with an engine or options of the command line, and need no key."""
    gateway.file.write_text(left)
    reload = await gateway.reloader.reload()
    assert reload.outcome == "refused" and "is empty; it is probably still being written" in reload.problems[0]
    assert (await gateway.ask()).status_code == 200


async def test_a_key_that_is_no_longer_asked_for_is_warned_of(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_port, "loopback", lambda host: False)
    closed = {**settings, "auth": {"api_key": "secret-key"}}
    async with following(tmp_path / "nproxy.yaml", closed) as gateway:
        opened = {name: section for name, section in closed.items() if name != "auth"}
        assert (await gateway.reload(opened)).outcome == "applied"
        assert "no key is required" in caplog.text
        caplog.clear()
        assert (await gateway.reload({**opened, "n_policy": {"max_n": 2}})).outcome == "applied"
        assert "no key is required" not in caplog.text


async def test_what_needs_a_restart_refuses_the_whole(gateway: Following, settings: dict[str, Any]) -> None:
    reload = await gateway.reload({**settings, "listen": {"port": 1, "host": "::1"}, "n_policy": {"max_n": 2}})
    assert reload.outcome == "refused"
    assert [problem.rpartition("yaml:")[2] for problem in reload.problems] == [
        "2: listen.host: cannot change without a restart",
        "3: listen.port: cannot change without a restart",
    ]
    assert (await gateway.ask(n=3)).status_code == 200, "max_n is what it was"


async def test_unchanged_settings_touch_nothing(gateway: Following, settings: dict[str, Any]) -> None:
    app = gateway.app
    before = (app.settings, app.upstreams.all, app.upstreams.all[0].client)
    assert (await gateway.reload({**settings, "stream": {"ping_seconds": 15}})).outcome == "unchanged", "the default"
    after = (app.settings, app.upstreams.all, app.upstreams.all[0].client)
    assert all(one is other for one, other in zip(before, after, strict=True))


async def test_a_secret_in_a_file_is_read_again(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream
) -> None:
    key = gateway.file.with_name("key")
    for secret in ("first", "second"):
        key.write_text(f"{secret}\n")
        keyed = {**settings, "upstreams": [upstream_settings(upstream, api_key="file:key")]}
        assert (await gateway.reload(keyed)).outcome == "applied"
        await gateway.ask()
        assert upstream.calls[-1].headers["authorization"] == f"Bearer {secret}"


async def test_no_secret_is_told(gateway: Following, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for settings in (
        f"upstreams: [{{name: a, replicas: [http://a], api_key: {CANARY}, n: 7}}]\nadmin: {{token: {CANARY}, nope: 1}}",
        f"upstreams: [{{name: a, replicas: [http://a], api_key: {CANARY}}}]\nlisten: {{port: 0}}",
    ):
        reload = await gateway.reload(settings)
        page = (await gateway.client.get("/status")).text + (await gateway.client.get("/metrics")).text
        assert CANARY not in caplog.text + repr(reload) + page


async def test_keys_are_served_as_they_were_checked(
    gateway: Following, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file is read once: what becomes of it after that is for the next reload."""
    file, read = gateway.file.with_name("keys.yaml"), Source.read

    def read_at_the_last_moment(source: Source, before: Reading | None = None) -> Reading:
        reading = read(source, before)
        file.unlink()
        return reading

    write_keys(file, "one")
    monkeypatch.setattr(Source, "read", read_at_the_last_moment)
    assert (await gateway.reload({**settings, "auth": {"api_keys_file": "keys.yaml"}})).outcome == "applied"
    assert [await status(gateway, key) for key in ("one", "two")] == [200, 401]


async def test_keys_are_served_as_they_were_checked_from_the_start(settings: dict[str, Any], tmp_path: Path) -> None:
    file, keys = tmp_path / "nproxy.yaml", tmp_path / "keys.yaml"
    listen = {**settings["listen"], "huge_pages": "none"}
    write(file, {**settings, "listen": listen, "auth": {"api_keys_file": "keys.yaml"}})
    write_keys(keys, "one")
    reading, urls, stop = Source(file, {}).read(), asyncio.Queue[str](), asyncio.Event()
    keys.unlink()
    served = asyncio.create_task(serve(reading, ready=lambda url, _: urls.put_nowait(url), stop=stop))
    async with plain_client(await urls.get()) as client:
        shown = {"authorization": "Bearer one"}
        assert (await client.get("/v1/models", headers=shown)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
    stop.set()
    await served


def test_settings_are_served_since_they_were_applied() -> None:
    history = History(Metrics(version="0", upstreams=[], models=[]))
    since = history.status()["since"]
    assert history.status()["last_reload"] is None
    history.add(Reload(1e9, "refused", ("why",)))
    refused = {"at": "2001-09-09T01:46:40+00:00", "outcome": "refused", "problems": ["why"]}
    assert history.status() == {"since": since, "last_reload": refused}
    history.add(Reload(2e9, "applied"))
    assert history.status()["since"] == "2033-05-18T03:33:20+00:00"
    history.add(Reload(3e9, "unchanged"))
    assert history.status()["since"] == "2033-05-18T03:33:20+00:00"


async def test_a_fault_of_our_own_is_no_reason_to_stop(
    gateway: Following, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.app, "reconfigure", broken)
    assert (await gateway.reload({**settings, "n_policy": {"max_n": 2}})).outcome == "refused"
    monkeypatch.undo()
    assert (await gateway.reloader.reload()).outcome == "applied"


async def test_a_file_that_was_missing_is_waited_for(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream
) -> None:
    """The settings themselves do not change any more: what they asked for in vain does."""
    keyed = {**settings, "upstreams": [upstream_settings(upstream, api_key="file:key")]}
    assert (await gateway.reload(keyed)).outcome == "refused"
    looking = asyncio.create_task(gateway.reloader.run())
    await asyncio.sleep(0.2)
    assert await gateway.metric('nproxy_config_reloads_total{outcome="refused"}') == 1, "nothing has changed"
    gateway.file.with_name("key").write_text("came later")
    async with asyncio.timeout(20):
        while gateway.app.upstreams.all[0].settings.api_key == "passthrough":
            await asyncio.sleep(0.01)
    looking.cancel()
    await gateway.ask()
    assert upstream.calls[-1].headers["authorization"] == "Bearer came later"


async def test_refused_settings_are_refused_once_though_a_file_that_they_no_longer_name_is_gone(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = gateway.file.with_name("key")
    key.write_text("served")
    await gateway.reload({**settings, "upstreams": [upstream_settings(upstream, api_key="file:key")]})
    looks = 0

    class Counted(Watch):
        def look(self) -> bool:
            nonlocal looks
            looks += 1
            return super().look()

    monkeypatch.setattr(reload, "Watch", Counted)
    key.unlink()
    assert (await gateway.reload("upstreams: [")).outcome == "refused"
    looking = asyncio.create_task(gateway.reloader.run())
    await until(lambda: looks >= 6)
    looking.cancel()
    assert await gateway.metric('nproxy_config_reloads_total{outcome="refused"}') == 1


async def test_a_request_that_comes_during_a_reload_has_another_one_follow(gateway: Following) -> None:
    """The files may have been read before the change that the request is about."""
    told: list[Reload] = []

    def tell(reload: Reload) -> None:
        told.append(reload)
        if len(told) == 1:
            reloader.ask()

    reloader = Reloader(gateway.reading, lambda _: None, tell, poll_seconds=3600)
    reloader.ask()
    running = asyncio.create_task(reloader.run())
    await until(lambda: len(told) == 2)
    running.cancel()


async def test_a_changed_file_is_taken_by_itself_and_a_signal_takes_it_at_once(
    gateway: Following, settings: dict[str, Any]
) -> None:
    """First the poll, then SIGHUP, which also is an answer where nothing has changed."""

    async def reloads(outcome: str, count: int) -> None:
        async with asyncio.timeout(20):
            while await gateway.metric(f'nproxy_config_reloads_total{{outcome="{outcome}"}}') < count:
                await asyncio.sleep(0.01)

    looking = asyncio.create_task(gateway.reloader.run())
    write(gateway.file, {**settings, "n_policy": {"max_n": 2}})
    await reloads("applied", 1)
    looking.cancel()
    assert (await gateway.ask(n=3)).status_code == 400

    async with follow(gateway.reading, partial(use, gateway.app), gateway.app.history, lambda _: None):
        os.kill(os.getpid(), signal.SIGHUP)
        await reloads("applied", 2)
        os.kill(os.getpid(), signal.SIGHUP)
        await reloads("unchanged", 1)


async def test_good_bad_and_unchanged_reloads_under_streams(
    gateway: Following, settings: dict[str, Any], upstream: FakeUpstream
) -> None:
    """The short form of the bar: 100 reloads while 200 streams are held, and others come and go."""
    going = Behaviour(hold_after=2)
    upstream.behaviour = going
    upstream.choose = lambda call: None if call.body["seed"] < 10_000 else Behaviour(pause=0.001)
    held = [asyncio.create_task(gateway.stream(n=2, seed=10 * number)) for number in range(200)]
    await upstream.until(lambda: len(upstream.open_calls) == 400, 100)
    async with FakeUpstream(Behaviour(pause=0.001)) as other:
        variants: tuple[dict[str, Any] | str, ...] = (
            {**settings, "upstreams": [upstream_settings(upstream, replicas=[upstream.url, other.url])]},
            {**settings, "upstreams": [upstream_settings(upstream, timeouts={"idle": 50})], "limits": {"body_mib": 5}},
            "listen: {port: 1",
            settings,
            settings,
        )

        async def act(time: int) -> None:
            await gateway.reload(variants[time % len(variants)])
            await asyncio.sleep(0)

        tally = await under_streams(gateway.url, 4, 100, act, first_seed=10_000)
        assert tally.wrong == []
        assert tally.whole >= 4
    upstream.behaviour = Behaviour()
    going.go_on.set()
    for answer in await asyncio.gather(*held):
        assert answer.done
    told = [
        await gateway.metric(f'nproxy_config_reloads_total{{outcome="{how}"}}')
        for how in ("applied", "unchanged", "refused")
    ]
    assert told == [60, 20, 20]


async def test_a_change_is_found_again_if_there_was_no_thread_to_read_it(
    gateway: Following, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_daemon_thread

    async def fails(work: Callable[[], Any], name: str) -> Any:
        if work == gateway.reading.again:
            monkeypatch.setattr(reload, "in_daemon_thread", found)
            raise RuntimeError("can't start new thread")
        return await found(work, name)

    monkeypatch.setattr(reload, "in_daemon_thread", fails)
    write(gateway.file, {**settings, "n_policy": {"max_n": 2}})
    follower = asyncio.create_task(gateway.reloader.run())
    try:
        async with asyncio.timeout(20):
            while gateway.app.config.n_policy.max_n != 2:
                await asyncio.sleep(0.01)
    finally:
        follower.cancel()


async def test_an_error_of_its_own_while_it_reads_ends_no_reloads(
    gateway: Following, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(reading: Reading) -> Reading:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Reading, "again", fails)
        failed = await gateway.reload({**settings, "n_policy": {"max_n": 2}})
    assert (failed.outcome, failed.problems) == ("refused", ("an error in nproxy; see the log",))
    assert (await gateway.reload({**settings, "n_policy": {"max_n": 2}})).outcome == "applied"
