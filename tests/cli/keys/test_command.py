"""`nproxy keys` as a user meets it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nproxy.cli.commands import main
from nproxy.cli.keys.command import add_key, new_key
from nproxy.config import read_keys


def run(*words: str, said: str = "") -> Result:
    return CliRunner().invoke(main, ["keys", *words], input=said)


def test_a_key_is_printed_once_with_its_entry(tmp_path: Path) -> None:
    done = run("new", "team-a")
    key, *entry = done.stdout.splitlines()
    assert (done.exit_code, done.stderr) == (0, "")
    assert key.startswith("sk-nproxy-") and len(key) > 50
    assert entry == ["- name: team-a", f"  hash: sha256:{hashlib.sha256(key.encode()).hexdigest()}"]
    assert run("new", "team-a").stdout.splitlines()[0] != key
    assert run("hash", said=f"{key}\n").stdout == f"{entry[1].removeprefix('  hash: ')}\n"


def test_a_key_made_elsewhere_has_twenty_characters_or_more() -> None:
    assert run("hash", said="k" * 20).exit_code == 0
    assert run("hash", said="k" * 19).exit_code == 2


def test_a_file_gets_the_hash_and_nobody_else_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    first = run("new", "team-a", "--file", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    second, other = run("new", "team-a", "--file", str(file)), run("new", "team-b", "--file", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    printed = [done.stdout.strip() for done in (first, second, other)]
    digests = [hashlib.sha256(key.encode()).digest() for key in printed]
    assert [(key.name, key.hash) for key in read_keys(file)] == [
        ("team-a", tuple(digests[:2])),
        ("team-b", tuple(digests[2:])),
    ]
    assert not any(key in file.read_text() for key in printed)
    assert first.stderr == other.stderr == f"its hash was added to {file}\n"
    beside = "earlier keys of team-a: 1, which stay valid until their hashes are removed"
    assert second.stderr == f"its hash was added to {file}; {beside}\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_key_that_cannot_be_printed_is_not_stored(tmp_path: Path) -> None:
    script = f'"{sys.executable}" -m nproxy keys new a --file "{tmp_path}/keys.yaml" > /dev/full'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "nproxy: the output cannot be written: no space left on device\n")
    assert not list(tmp_path.iterdir())


def _made(name: str, file: Path) -> str:
    shown: list[str] = []
    add_key(name, new_key(name), file, shown.append)
    return shown[0]


def test_many_at_once_lose_none(tmp_path: Path) -> None:
    """Whether they name the file, or a link to it in another folder."""
    file, folder = tmp_path / "keys.yaml", tmp_path / "links"
    folder.mkdir()
    (folder / "keys.yaml").symlink_to(file)
    names = file, folder / "keys.yaml"
    with ThreadPoolExecutor(8) as threads:
        made = [*threads.map(lambda number: _made(f"team-{number}", names[number % 2]), range(24))]
    digests = {hashlib.sha256(key.encode()).digest() for key in made}
    assert {digest for key in read_keys(file) for digest in key.hash} == digests


def test_who_could_read_the_file_still_can(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    run("new", "a", "--file", str(file))
    # who is not root can give it to a group of theirs, which may be the one that it has
    user, group = (1234, 4321) if os.geteuid() == 0 else (os.geteuid(), min(os.getgroups()))
    os.chown(file, user, group)
    file.chmod(0o640)
    assert run("new", "b", "--file", str(file)).exit_code == 0
    now = file.stat()
    assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (user, group, 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "real.yaml", tmp_path / "keys.yaml"
    run("new", "a", "--file", str(file))
    link.symlink_to(file)
    assert run("new", "b", "--file", str(link)).exit_code == 0
    assert link.is_symlink() and len(read_keys(file)) == 2


def test_a_link_may_lead_to_another_disk(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    assert memory.stat().st_dev != tmp_path.stat().st_dev
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        file, link = Path(folder, "keys.yaml"), tmp_path / "keys.yaml"
        run("new", "a", "--file", str(file))
        link.symlink_to(file)
        assert run("new", "b", "--file", str(link)).exit_code == 0
        assert link.is_symlink() and len(read_keys(file)) == 2


KEYS = f"""keys:
- name: a
  hash: [sha256:{"a" * 64}, "sha256:{"A1" * 32}"]
  weight: 2
  tokens_per_minute: 2000000
  models: [m, k]
- name: b
  hash: sha256:{"b" * 64}
  disabled: true
- {{name: c, hash: sha256:{"c" * 64}, expires: 2020-01-31}}
- {{name: d, hash: sha256:{"d" * 64}, expires: 2999-01-31}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    return file


def test_the_keys_are_listed(file: Path) -> None:
    done = run("list", "--file", str(file))
    assert done.exit_code == 0
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["a", "valid", "aaaaaaaa a1a1a1a1", "weight=2 tokens_per_minute=2000000", "m k"],
        ["b", "disabled", "bbbbbbbb", "", "all"],
        ["c", "expired", "cccccccc", "", "all"],
        ["d", "valid until 2999-01-31 00:00 UTC", "dddddddd", "", "all"],
    ]


@pytest.mark.parametrize(("name", "state"), [("b", "disabled"), ("c", "expired")])
def test_a_key_for_an_entry_that_is_refused_says_so(file: Path, name: str, state: str) -> None:
    done = run("new", name, "--file", str(file))
    assert done.exit_code == 0
    refused = f"its entry is {state} there, so it is refused until you change that"
    assert done.stderr == f"its hash was added to {file}; {refused}\n"
    (entry,) = (key for key in read_keys(file) if key.name == name)
    assert len(entry.hash) == 2


def test_the_list_as_json_can_be_written_back(file: Path) -> None:
    listed = json.loads(run("list", "--file", str(file), "--json").stdout)
    assert [key.pop("state") for key in listed["keys"]] == ["valid", "disabled", "expired", "valid"]
    before = read_keys(file)
    assert listed.pop("version") == 1
    file.write_text(json.dumps(listed))
    assert read_keys(file) == before


def test_a_key_is_removed_by_its_name(file: Path) -> None:
    done = run("remove", "b", "--file", str(file))
    assert (done.exit_code, done.stdout) == (0, f"b was removed from {file}\n")
    assert [key.name for key in read_keys(file)] == ["a", "c", "d"]
    assert "bbbb" not in file.read_text()


def test_the_old_key_of_two_is_removed_by_the_begin_of_its_hash(file: Path) -> None:
    done = run("remove", "a", "--file", str(file), "--hash", "AAAAAAAA")
    assert (done.exit_code, done.stdout) == (0, f"sha256:{'a' * 64} of a was removed from {file}\n")
    assert [digest.hex() for digest in read_keys(file)[0].hash] == ["a1" * 32]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("x",), "no key in keys.yaml is named x; see: nproxy keys list --file keys.yaml"),
        (("b", "--hash", "b" * 8), "b has only this key; to remove its entry as well, leave out --hash"),
        (("a", "--hash", "b" * 8), "a has no hashes that begin with bbbbbbbb; see: nproxy keys list --file"),
        (("a", "--hash", "aaaa"), "a hash has 64 hexadecimal digits, of which the first eight or more must be given"),
        (("a", "--file", "none.yaml"), "none.yaml: cannot be read: no such file or directory"),
        (("a", "--file", "one.yaml"), "a is the only key in one.yaml, and a file without keys is refused"),
        (("a", "--file", "one.yaml", "--hash", "a" * 8), "a is the only key in one.yaml, and"),
    ],
)
def test_what_cannot_be_removed_is_told_and_the_file_stays(
    file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], problem: str
) -> None:
    monkeypatch.chdir(file.parent)
    one = file.with_name("one.yaml")
    one.write_text(f"keys: [{{name: a, hash: sha256:{'a' * 64}}}]\n")
    done = run("remove", "--file", "keys.yaml", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"nproxy: {problem}") and done.stderr.count("\n") == 1
    assert file.read_text() == KEYS
    assert {*file.parent.iterdir()} == {file, one}


@pytest.mark.parametrize(
    ("words", "said", "problem"),
    [
        (("new", "team a"), "", "a name must be 1 to 64 letters"),
        (("new", "a", "--file", "bad.yaml"), "", "bad.yaml:2: keys[0].hash: is required"),
        (("new", "a", "--file", "none/keys.yaml"), "", "none/keys.yaml: no such file or directory"),
        (("hash",), "password\n", "a key must have at least 20 printable ASCII characters and no spaces"),
        (("hash",), "ein langer Satz, den man sich merkt\n", "no space"),
        (("hash",), "", "a key must have at least 20"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text("keys:\n- name: a\n")
    done = run(*words, said=said)
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in done.stderr and done.stderr.count("\n") == 1
    assert said.strip() not in done.stderr or not said
    assert bad.read_text() == "keys:\n- name: a\n"
