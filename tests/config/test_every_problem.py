"""A file that is wrong in several ways shows all of it at once, and nothing that only follows from something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from nproxy.config import Config, Source
from nproxy.config.checking import read_partly
from nproxy.config.tree import read_yaml

UPSTREAM = "{name: a, replicas: ['http://a']}"
HASH = "sha256:" + "0" * 64

TOGETHER = {
    "a key, a conflict and a file": (
        "listen: {wrokers: 1}\nupstreams: [{name: a, replicas: ['http://a'], fallback: [zz]}]\n"
        "auth: {api_keys_file: none.yaml}",
        ["listen.wrokers", "upstreams[0].fallback[0]", "auth.api_keys_file"],
    ),
    "two conflicts of one section beside a wrong key": (
        "engine: {device: cuda, kernels: native, num_blocks: 9, kv_fraction: 0.5, dtype: x}",
        ["engine.dtype", "engine.kv_fraction", "engine.kernels"],
    ),
    "an upstream without a name, and the replicas of another": (
        "upstreams: [{replicas: ['http://a']}, {name: b, replicas: ['http://a', 'http://a']}]",
        ["upstreams[0].name", "upstreams[1].replicas[1]"],
    ),
    "a certificate that is not there, and no key": (
        "listen: {tls: {certificate: none.pem}}",
        ["listen.tls.key", "listen.tls.certificate"],
    ),
    "a file of keys comes last": (
        "auth: {api_keys_file: keys.yaml}\n\n\n\nlimits: {body_mib: x}",
        ["limits.body_mib", "keys[0].weight", "keys[1].name", "keys[1].hash"],
    ),
}

ALONE = {
    "the name of an upstream": (
        "upstreams: [{name: a b, replicas: ['http://a']}, {name: c, replicas: ['http://c'], fallback: [a b]}]\n"
        "passthrough: {upstream: x}",
        "upstreams[0].name",
    ),
    "all upstreams": ("upstreams: 5\npassthrough: {upstream: a}", "upstreams"),
    "a misspelt section": (f"upstrems: [{UPSTREAM}]\nengine: null\npassthrough: {{upstream: a}}", "upstrems"),
    "a misspelt token": ("admin: {host: 0.0.0.0, tokn: x}", "admin.tokn"),
    "a misspelt file of keys": ("auth: {api_keysfile: x}", "auth.api_keysfile"),
    "a secret that is not set": ("auth: {api_key: '${NONE}'}", "auth.api_key"),
    "keys that are empty": (f"upstreams: [{UPSTREAM}]\nauth: {{}}", "auth"),
    "a port": ("listen: {port: x}\nadmin: {port: 8000}", "listen.port"),
    "a number that another is compared with": ("n_policy: {max_n: x}\nlimits: {inflight_choices: 1}", "n_policy.max_n"),
    "workers": (f"listen: {{workers: x}}\nupstreams: [{UPSTREAM[:-1]}, parallel: 1}}]", "listen.workers"),
    "a default in the place of a key": ("engine: {max_batch_tokens: 20, max_sequences: x}", "engine.max_sequences"),
    "the admin port of an upstream without servers": ("upstreams: [{name: a, replicas: []}]\nadmin: 5", "admin"),
}


def paths(folder: Path, text: str) -> list[str]:
    file = folder / "nproxy.yaml"
    file.write_text(text)
    first, second = f"{{name: a, weight: x, hash: '{HASH}'}}", f"{{name: a, hash: '{HASH}'}}"
    (folder / "keys.yaml").write_text(f"keys:\n- {first}\n- {second}\n")
    reading = Source(file, {}).read()
    assert reading.config is None and reading.keys == ()
    return [str(problem).split(": ")[1] for problem in reading.problems]


@pytest.mark.parametrize(("text", "expected"), TOGETHER.values(), ids=TOGETHER)
def test_what_is_wrong_is_told_at_once(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert paths(tmp_path, text) == expected


@pytest.mark.parametrize(("text", "expected"), ALONE.values(), ids=ALONE)
def test_what_only_follows_from_it_is_not_told(tmp_path: Path, text: str, expected: str) -> None:
    assert paths(tmp_path, text) == [expected]


def test_the_files_of_settings_that_are_wrong_are_watched(tmp_path: Path) -> None:
    paths(tmp_path, "auth: {api_key: 'file:key'}\nlisten: {port: x, tls: {certificate: c.pem, key: k.pem}}")
    files = Source(tmp_path / "nproxy.yaml", {}).read().files
    assert {file.name for file in files} == {"nproxy.yaml", "key", "c.pem", "k.pem"}


class Noted(dict[Path, bytes | None]):
    """Digests of files, of which each may be noted only once."""

    def __setitem__(self, file: Path, digest: bytes | None) -> None:
        assert file not in self
        super().__setitem__(file, digest)


def test_a_file_is_noted_only_before_it_is_read_for_the_first_time(tmp_path: Path) -> None:
    """A secret that has been read is not read again: a change in between would be missed."""
    (tmp_path / "key").write_text("k")
    tree = read_yaml("auth: {api_key: 'file:key'}\nlisten: {port: x}", "settings")
    noted = Noted()
    _, problems = read_partly(Config, tree, {"environ": {}, "folder": tmp_path, "secrets": {}, "files": noted})
    assert len(problems) == 1 and [*noted] == [tmp_path / "key"]


def test_a_file_that_was_good_shows_all_of_it_when_it_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text(f"upstreams: [{UPSTREAM}]")
    good = Source(file, {}).read()
    assert good.config is not None
    text, expected = TOGETHER["a key, a conflict and a file"]
    file.write_text(text)
    assert [str(problem).split(": ")[1] for problem in good.again().problems] == expected
