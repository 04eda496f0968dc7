"""The benchmark in its shortest form, with nproxy alone: it starts, answers, and is told of."""

import pytest

from bench.engine.__main__ import main
from bench.engine.peers import OTHER, dtype


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_quick_run_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    ours = ["nproxy", f"nproxy {OTHER}", "nproxy int8"]
    assert main(["--quick", "--peers", ",".join(ours), "--n", "2", "--prompts", "53"]) == 0
    table = capsys.readouterr().out
    [line] = [line for line in table.splitlines() if line.startswith("| nproxy | ") and "tokens" not in line][:1]
    assert line.count(" s |") == 2, "a figure is missing"
    assert "What is missing" not in table
    own, other, int8 = (next(line for line in table.splitlines() if line.startswith(f"- {name}: ")) for name in ours)
    assert f"dtype {dtype()}," in own and f"dtype {OTHER}," in other
    assert f"dtype {dtype()}," in int8 and "quantization int8" in int8, "it is not told what another one is"


def test_a_peer_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "ollama"])
    assert "no such peer: ollama; there are: nproxy, " in capsys.readouterr().err


@pytest.mark.parametrize("numbers", ["0", "4,", "four"])
def test_numbers_are_numbers(numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--n", numbers])
    assert "must be numbers above 0" in capsys.readouterr().err
