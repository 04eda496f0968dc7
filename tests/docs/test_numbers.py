"""Fixed limits and times, which no setting changes, are what the pages say."""

from __future__ import annotations

import re

import pytest

from nproxy.choices import retry, warming
from nproxy.gateway import bodies, reload, server
from nproxy.openai import body, sse
from nproxy.upstreams import breaker, capabilities, client, dns, models, replicas
from nproxy.upstreams.http import connecting, connections
from nproxy.workers import process, supervisor
from tests.real.processes import ROOT

FLEET, CHOICES, CLIENT = "docs/fleet.md", "docs/guides/choices.md", "docs/adr/0037-an-http-client-of-what-calls-need.md"
WORDS = {2: "two", 4: "four", 10: "ten"}

SENTENCES = [
    (FLEET, f"A connection without a request for {server.KEEPALIVE_SECONDS:g} s is closed."),
    (FLEET, f"The head of a request must arrive within {server.HEADER_SECONDS:g} s;"),
    (FLEET, f"at most {server.MOST_HEADERS} lines of {server.LONGEST_HEADER:,} bytes,"),
    (FLEET, f"and {server.MOST_HEAD_BYTES / 2**10:g} KiB in all."),
    (FLEET, f"The body must arrive within {bodies.BODY_SECONDS:g} s;"),
    (FLEET, f"its nesting to {body.MOST_LEVELS} levels."),
    (FLEET, f"an event of a stream to {sse.MAX_EVENT / 2**20:g} MiB,"),
    (FLEET, f"a whole answer to {client.MAX_BODY / 2**20:g} MiB for each choice"),
    (FLEET, f"and to {client.MOST_CHOICES * client.MAX_BODY / 2**20:g} MiB in all."),
    (FLEET, f"up to {retry.FIRST_PAUSE_SECONDS:g} s before its first one,"),
    (FLEET, f"each further one, {retry.LONGEST_PAUSE_SECONDS:g} s at most."),
    (FLEET, f"unreachable within the last {replicas.AVOID_SECONDS:g} s"),
    (FLEET, f"until the pause ends, for {replicas.LONGEST_REST_SECONDS / 60:g} minutes at most,"),
    (FLEET, f"Each further failure doubles the time, up to {breaker.LONGEST_OPEN / 60:g} minutes."),
    (FLEET, f"It is looked up for new connections, every {connecting.NAME_SECONDS:g} s at most."),
    (FLEET, f"nproxy looks names up every {dns.INTERVAL_SECONDS:g} s"),
    (FLEET, f"keeps the previous addresses for {dns.FORGET_SECONDS / 60:g} minutes."),
    (FLEET, f"reads the settings again within {WORDS[round(2 * reload.POLL_SECONDS)]} seconds"),
    (FLEET, f"until its streams have ended, for {supervisor.HANDOVER_SECONDS / 60:g} minutes at most."),
    (FLEET, f"A worker that does not report for {process.TICK_SECONDS * process.SILENT_TICKS:g} s is killed."),
    (FLEET, f"except for {connections.SPARE_FILES} files."),
    (CHOICES, f"keeps this for {WORDS[round(capabilities.LESSON_SECONDS / 60)]} minutes"),
    (CHOICES, f"has been computed, after {warming.WARM_SECONDS:g} s at the latest."),
    (CHOICES, f"it is {models.FRESH_SECONDS:g} seconds old."),
    (CHOICES, f"that were never read are waited for longer ({models.FIRST_SECONDS:g} s)."),
    (CLIENT, f"are closed {WORDS[round(connections.KEEPALIVE_SECONDS)]} seconds after"),
]


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_it_is_what_the_page_says(page: str, sentence: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    assert sentence in text
