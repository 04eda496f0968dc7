"""Philox 4x32-10 against the known answers that Random123 publishes (kat_vectors)."""

from __future__ import annotations

import pytest
import torch

from engine.sampling.philox import exponentials, philox, uniforms


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


def test_the_seed_is_the_key_and_the_position_is_in_the_counter_before_lane_and_stream() -> None:
    """Any other order gives other answers to the same seeds than before."""
    seed, position, stream = 0x0123456789ABCDEF, 0x2233334444, 2
    key = torch.tensor([[0x89ABCDEF], [0x01234567]]).expand(2, 2)
    counter = torch.tensor([[0x33334444, 0x33334444], [0x22, 0x22], [0, 1], [stream, stream]])
    words = philox(counter, key).T.flatten()[:5]  # four of each lane
    expected = (words.double() + 0.5) / 2**32
    assert torch.equal(uniforms(torch.tensor([seed]), torch.tensor([position]), 5, stream)[0], expected)


def test_every_bit_of_seed_and_position_counts() -> None:
    base = torch.tensor([5])
    here = exponentials(base, base, (3,))[0]
    for bit in (0, 1, 31, 32, 40, 62):
        assert not (exponentials(base ^ (1 << bit), base, (3,))[0] == here).any()
        assert not (exponentials(base, base ^ (1 << bit), (3,))[0] == here).any()
    assert not (exponentials(base, base, (3, 3))[1] == here).any()
    low, high = (exponentials(torch.tensor([seed]), base, (3,))[0] for seed in (-1, 2**63 - 1))
    assert not (low == high).any()


def test_alone_and_in_a_batch_bit_for_bit() -> None:
    seeds = torch.arange(-50, 50) * 2**40 + 3
    positions = torch.arange(100) * 77
    together = exponentials(seeds, positions, (2, 9))[1]
    alone = [exponentials(seeds[i : i + 1], positions[i : i + 1], (2, 9))[1] for i in range(100)]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together[:, :5], exponentials(seeds, positions, (2, 5))[1])


@pytest.mark.parametrize("counts", [(1, 256), (192, 256), (3, 5, 4)])
def test_streams_made_together_are_those_made_one_by_one(counts: tuple[int, ...]) -> None:
    seeds, positions = torch.arange(-3, 4) * 2**40 + 3, torch.arange(7) * 77
    for stream, made in enumerate(exponentials(seeds, positions, counts)):
        assert torch.equal(made, -uniforms(seeds, positions, counts[stream], stream).log())


def test_the_numbers_are_exponential() -> None:
    # Neighbouring seeds and neighbouring positions, as n choices use them: 100 cells, 99 degrees of freedom.
    seeds, positions = torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij")
    drawn = exponentials(seeds.flatten(), positions.flatten(), (20,))[0]
    assert drawn.min() > 0
    counts = torch.histc((-drawn).exp().float(), bins=100, min=0, max=1)
    expected = drawn.numel() / 100
    assert ((counts - expected) ** 2 / expected).sum() < 148.2  # 0.1 % of honest draws are above
    uniform = (-drawn).exp()
    for one, other in ((uniform[:-1], uniform[1:]), (uniform[:, :-1], uniform[:, 1:])):
        correlation = torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]
        assert abs(correlation) < 4 / one.numel() ** 0.5
