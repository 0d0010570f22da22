"""check(sealed=Sealed(time=True)), and every trick against its clock. No figure is compared: clocks
of candidates are wrong by so much that no load of the machine explains it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal
from verdict_schemas import valid

from python_inspector import Sealed, Verdict, WrongError, check
from python_inspector.api import hardware, timed, timing

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness", "quick")

KERNELS = Path(__file__).parent / "sealed_timed_kernels.py"
COMPILED: list[Any] = []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches, small caches, and a compiler that changes nothing."""
    COMPILED.clear()
    monkeypatch.setattr(timing, "BATCH", 1e-3)
    monkeypatch.setattr(timing, "MOST_CALLS", 16)
    monkeypatch.setattr(timed, "cache_bytes", lambda device: 1 << 16)
    monkeypatch.setattr(hardware, "cache_bytes", lambda device: 1 << 16)
    monkeypatch.setattr(torch, "compile", lambda like: COMPILED.append(like) or like)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does."""
    monkeypatch.setattr(timing, "AGREE", 0.999)


def like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def judged(name: str, inputs: Any = None, **options: Any) -> Verdict:
    inputs = (normal(8, 32), normal(32, seed=1)) if inputs is None else inputs
    sealed = Sealed(timeout=60, time=True, spare=False)
    try:
        return check(f"{KERNELS}:{name}", like, inputs, sealed=sealed, explain=False, **options)
    except WrongError as error:
        return error.verdict


@pytest.mark.usefixtures("patient")
def test_what_passes_is_timed_with_its_rivals() -> None:
    verdict = judged("right")
    assert verdict.status == "pass", verdict
    assert verdict.timing is not None
    assert set(verdict.timing.speeds) == {"candidate", "like", "compiled"}
    assert all(0 < it.low <= it.median <= it.high for it in verdict.timing.speeds.values())
    assert [like] == COMPILED
    assert "torch.compile(like) " in str(verdict)
    assert [case.status for case in verdict.cases] == ["pass", "pass"]
    made = valid(verdict.to_json(), "verdict")
    assert set(made["timing"]["microseconds"]) == {"candidate", "like", "compiled"}


@pytest.mark.usefixtures("patient")
def test_hard_cases_are_judged_beside_the_timed_one() -> None:
    verdict = judged("right", hard=["zeros", "small"])
    assert verdict.timing is not None, verdict
    ids = [case.checkpoint for case in verdict.cases]
    assert ids == ["like#0", "like:timed#0", "like:zeros#0", "like:small#0"]


@pytest.mark.usefixtures("patient")
def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fails)
    verdict = judged("right")
    assert verdict.timing is not None
    assert verdict.timing.why == {"compiled": "cannot be timed: RuntimeError: no compiler"}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", ["stops_clocks", "right"])
def test_clocks_are_held_since_before_the_import(name: str) -> None:
    verdict = judged(name)
    assert verdict.status == "pass", verdict
    assert verdict.timing is not None
    assert verdict.timing.speeds["candidate"].low > 0


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("replaces_the_clock", "timer_disagrees", "by the clock in its process"),
        ("writes_answers", "error", "among the answers of its process"),
        ("writes_times", "error", "among the"),
        ("closes_descriptors", "error", r"raised (OSError: \[Errno 9]|torch.AcceleratorError)"),
        ("reads_questions", "error", r"raised OSError: \[Errno 9]"),
    ],
)
def test_clocks_that_lie(name: str, status: str, words: str) -> None:
    verdict = judged(name)
    assert verdict.status == status, verdict
    assert re.search(words, verdict.reason)
    assert verdict.timing is None


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "name", ["cached_by_pointer", "cached_by_place", "of_first_calls", "of_known_values", "late"]
)
def test_what_is_right_only_where_it_was_looked_at(name: str) -> None:
    verdict = judged(name)
    assert verdict.status in ("fail", "nondeterministic"), verdict
    assert verdict.timing is None


def test_no_time_of_what_is_wrong() -> None:
    verdict = judged("wrong")
    assert verdict.status == "fail"
    assert verdict.timing is None


@pytest.mark.usefixtures("patient")
def test_a_kernel_in_place() -> None:
    def in_place(x: torch.Tensor, weight: torch.Tensor) -> None:
        x.copy_(like(x, weight))

    sealed = Sealed(timeout=60, time=True, spare=False)
    inputs = normal(8, 32), normal(32, seed=1)
    kernel = f"{KERNELS}:in_place"
    assert check(kernel, in_place, inputs, sealed=sealed, explain=False).timing is not None


def test_the_limit_of_the_hardware() -> None:
    limits = hardware.Limits(bytes=1e6, flops=1e9, bytes_per_second=1e9, flops_per_second=1e12)
    assert limits.exceeded(1.1e-3) == ""
    assert "1e+06 bytes in a call are 2e+09 in a second, a copy reaches 1e+09" in limits.exceeded(
        5e-4
    )
    more = hardware.Limits(flops=1e9, flops_per_second=1e12)
    assert "operations of `like`" in more.exceeded(5e-4)
    assert hardware.Limits().exceeded(1e-12) == ""


def test_what_a_call_cannot_do_without() -> None:
    x, weight = normal(8, 32), normal(32, seed=1)
    assert hardware.read_bytes(like, ((x, weight), {})) == (8 * 32 + 32) * 4
    table, ids = normal(100, 4), torch.tensor([3, 5])
    assert hardware.read_bytes(torch.nn.functional.embedding, ((ids, table), {})) == 2 * 4 * 4
    assert hardware.read_bytes(torch.argmax, ((x,), {})) == 0
    assert hardware.counted_flops(torch.mm, ((normal(4, 8), normal(8, 16)), {})) == 2 * 4 * 8 * 16
    found = hardware.Limits.of(torch.mm, ((normal(4, 8), normal(8, 16)), {}))
    assert found.bytes_per_second > 0
    assert found.flops_per_second > 0


def test_other_values_of_the_same_arguments() -> None:
    base = normal(6, 8)
    (x, view, ids), kwargs = timed.scaled(((base, base[1:3], torch.arange(3)), {"n": 2}), 0.5)
    assert torch.equal(x, base * 0.5)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(ids, torch.arange(3))
    assert kwargs == {"n": 2}
