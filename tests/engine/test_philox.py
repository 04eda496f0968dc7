"""Philox 4x32-10 against the known answers that Random123 publishes (kat_vectors)."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.philox import philox, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter: str, key: str, words: str) -> None:
    # Beside another lane, so that lanes must not mix.
    columns = [torch.tensor([[int(word, 16), 7] for word in text.split()]) for text in (counter, key)]
    drawn = philox(*columns)
    assert [f"{word:08x}" for word in drawn[:, 0].tolist()] == words.split()


def test_uniforms_use_every_bit_of_seed_and_position() -> None:
    base = torch.tensor([5])
    here = uniforms(base, base).item()
    for bit in (0, 1, 31, 32, 40, 62):
        assert uniforms(base ^ (1 << bit), base).item() != here
        assert uniforms(base, base ^ (1 << bit)).item() != here
    assert uniforms(torch.tensor([-1]), base).item() != uniforms(torch.tensor([2**63 - 1]), base).item()


def test_uniforms_are_alone_what_they_are_in_a_batch() -> None:
    seeds = torch.arange(-50, 50) * 2**40 + 3
    positions = torch.arange(100) * 77
    together = uniforms(seeds, positions)
    alone = torch.cat([uniforms(seeds[i : i + 1], positions[i : i + 1]) for i in range(100)])
    assert torch.equal(together, alone)


def test_uniforms_are_uniform() -> None:
    # Neighbouring seeds and neighbouring positions, as n choices use them: 100 cells, 99 degrees of freedom.
    seeds, positions = torch.meshgrid(torch.arange(400), torch.arange(500), indexing="ij")
    drawn = uniforms(seeds.flatten(), positions.flatten())
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn.float(), bins=100, min=0, max=1)
    expected = len(drawn) / 100
    assert ((counts - expected) ** 2 / expected).sum() < 148.2  # 0.1 % of honest draws are above
    neighbours = torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]
    assert abs(neighbours) < 4 / len(drawn) ** 0.5
