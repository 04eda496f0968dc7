"""Install, start, probe and examine servers, and write docs/compatibility.json and .md: `make compatibility`.

    python -m tests.compatibility [SERVER...]

Without names, all servers. A server that is not available or does not start keeps its earlier record; if it has none,
it gets a row with the reason. Exit code 1: a case failed. Exit code 2: there is no such server.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.compatibility.installing import Unavailable
from tests.compatibility.matrix import examine, probe
from tests.compatibility.page import FILE, PAGE, page
from tests.compatibility.record import Record, load, save
from tests.compatibility.servers import SERVERS


def run(name: str, logs: Path) -> Record:
    """Examine one server. It is started twice, since it may not survive the probe, and runs only during this call."""
    record = None
    try:
        with SERVERS[name](logs) as running:
            probed = probe(running.url, running.model)
        with SERVERS[name](logs) as running:
            record = examine(running.url, running.model, probed, logs / "gateway.log")
            record = replace(record, versions=running.versions)
    except Unavailable as error:
        return Record(missing=str(error))
    except RuntimeError as error:  # it did not start; if there is a record, it did not end in time
        return record or Record(missing=str(error).splitlines()[0])
    return record


def main(names: list[str]) -> int:
    """Run these servers and write the records of all. Returns the exit code."""
    if unknown := set(names) - set(SERVERS):
        print(f"no such server: {', '.join(sorted(unknown))}; there are: {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    failed = False
    for name in names or SERVERS:
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as logs:
            record = run(name, Path(logs))
        if record.missing:
            print(f"  {record.missing}", file=sys.stderr)
        failed |= _failed(record)
        known = load(FILE)  # read again: other runs may have written it meanwhile
        if not (record.missing and name in known):
            known = {**known, name: record}
        save(FILE, ordered := {one: known[one] for one in SERVERS if one in known})
        PAGE.write_text(page(ordered))
    return int(failed)


def _failed(record: Record) -> bool:
    return any(one.verdict == "fail" for went in record.outcomes.values() for one in went.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
