"""Statistics of simulated kernels that are made of many outputs at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from python_inspector.format.recording import Later
from python_inspector.recorder import spreads
from python_inspector.recorder.spreads import Spreads
from python_inspector.trace.ill_conditioned import of_the_rest
from python_inspector.trace.spread import judged, spread_of

AXES = ("batch", "token", "channel")
HEADS = ("batch", "token", "head", "channel")
RUNS = 5

Output = tuple[torch.Tensor, tuple[str, ...], torch.Tensor | None, torch.Tensor]


def an_output(
    seed: int,
    axes: tuple[str, ...] = AXES,
    dtype: torch.dtype = torch.bfloat16,
    *,
    masked: bool = False,
) -> Output:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 5, 24) if axes == AXES else (2, 5, 3, 8)
    oracle = torch.randn(shape, generator=generator).double()
    off = 1 + 1e-2 * torch.randn((1 + RUNS, *shape), generator=generator)
    valid = torch.rand(2, 5, *[1] * (len(shape) - 2), generator=generator) < 0.7
    return oracle, axes, valid if masked else None, (oracle * off).to(dtype)


def alone(output: Output) -> dict[str, Any]:
    oracle, axes, valid, samples = output
    against = judged(oracle, axes, valid, None, samples.dtype)
    (entry,), _ = of_the_rest(against, samples, [spread_of(against, samples)])
    return entry


def many() -> list[Output]:
    outputs = [an_output(seed) for seed in range(4)]
    outputs += [an_output(seed, HEADS) for seed in range(4, 7)]
    outputs += [an_output(seed, dtype=torch.float32) for seed in range(7, 9)]
    outputs += [an_output(seed, masked=True) for seed in range(9, 12)]
    outputs[1][0][0, 0] = 0.0  # a token without size among others that have one
    outputs[2][0][0, 1, 3] = torch.inf  # an element that cannot be judged
    outputs[8][3][2, 0, 0] = torch.nan
    outputs[10][2].fill_(False)  # type: ignore[union-attr]
    return outputs


@pytest.mark.parametrize("room", [1, 2000, 1 << 20])
def test_many_at_once_are_what_each_is_alone(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "ROOM", room)
    monkeypatch.setattr(spreads, "WAITING", 1 << 30)
    outputs, waiting = many(), Spreads()
    entries = [waiting.of(*output, 1)[0] for output in outputs]
    assert not any(entries)
    waiting.settle()
    for entry, output in zip(entries, outputs, strict=True):
        expected = Later()
        expected.fill(alone(output))
        assert entry == expected and entry["runs"] == RUNS


def test_samples_of_two_kinds_have_figures_of_their_own() -> None:
    oracle, axes, valid, samples = an_output(1)
    other = samples * 1.05
    both, waiting = torch.cat([samples, other[1:]]), Spreads()
    for like_it in range(2):  # alone, and with another one
        waiting = Spreads()
        entries = [waiting.of(oracle, axes, valid, both, 2) for _ in range(1 + like_it)]
        waiting.settle()
        for first, second in entries:
            assert first == alone((oracle, axes, valid, samples))
            assert second == alone((oracle, axes, valid, torch.cat([samples[:1], other[1:]])))
            assert first["runs"] == second["runs"] == RUNS and first != second


def test_outputs_that_differ_do_not_share_their_figures() -> None:
    outputs, waiting = [an_output(seed) for seed in range(3)], Spreads()
    entries = [waiting.of(*output, 1)[0] for output in outputs]
    waiting.settle()
    assert len({str(entry) for entry in entries}) == 3


def test_what_waits_is_filled_in_once_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "MOST", 3)
    waiting = Spreads()
    first, second = (waiting.of(*an_output(seed), 1)[0] for seed in (1, 2))
    waiting.settle_many()
    assert not first and not second
    third = waiting.of(*an_output(3, HEADS), 1)[0]
    waiting.settle_many()
    assert first and second and third


def test_a_mask_that_the_run_changes_afterwards() -> None:
    output, waiting = an_output(1, masked=True), Spreads()
    mask = output[2]
    assert mask is not None
    expected = alone(output)
    (entry,) = waiting.of(*output, 1)
    mask.fill_(True)
    waiting.settle()
    assert entry == expected


@pytest.mark.parametrize(("rooms", "times"), [(2, 0), (20, 1)])
def test_memory_that_large_outputs_took_is_given_back(
    rooms: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[torch.device] = []
    monkeypatch.setattr(spreads, "give_back", given_back.append)
    oracle, axes, valid, samples = an_output(0)
    monkeypatch.setattr(spreads, "ROOM", samples.numel() // rooms)
    waiting = Spreads()
    waiting.of(oracle, axes, valid, samples, 1)
    waiting.settle()
    assert given_back == [oracle.device] * times
