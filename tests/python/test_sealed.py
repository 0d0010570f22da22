"""check(sealed=...): a function in a process of its own, and every trick of one that it names."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, sealed_verdict

from python_inspector import Sealed, check, draw
from python_inspector.api import travel
from python_inspector.errors import FormatError, UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

KERNELS = Path(__file__).parent / "sealed_kernels.py"


sealed = functools.partial(sealed_verdict, KERNELS)


def test_a_right_kernel_passes_and_a_wrong_one_fails() -> None:
    assert sealed("right").status == "pass"
    assert sealed("in_numpy", arrays="numpy").status == "pass"
    assert sealed("without_eps").status == "fail"


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("raises", "error", "raised ValueError: no such shape"),
        ("crashes", "error", "crashed: SIGSEGV"),
        ("exits", "error", "ended its process with exit code 0"),
        ("leaves_a_process", "error", "left 2 processes behind"),
        ("leaves_a_daemon", "error", "left 2 processes behind"),
        ("changes_its_input", "fail", "argument x was changed"),
        ("of_first_call", "nondeterministic", ""),
        ("returns_memory", "fail", ""),
        ("lazy", "error", "is a Lazy, which is more than a tensor"),
        ("patches_the_judge", "fail", ""),
        ("looks_for_the_reference", "fail", ""),
        ("no_such_kernel", "error", "has no no_such_kernel"),
        ("resizes", "error", "changed the structure of its arguments"),
    ],
)
def test_tricks(name: str, status: str, words: str) -> None:
    verdict = sealed(name)
    assert verdict.status == status, verdict
    assert words in verdict.reason


def test_a_kernel_that_hangs_or_eats_memory_is_ended() -> None:
    begin = time.monotonic()
    assert "did not end within 3 s" in sealed("hangs", sealed=Sealed(timeout=3)).reason
    assert time.monotonic() - begin < 20
    verdict = sealed("eats_memory", sealed=Sealed(memory=2 << 30))
    assert "GiB of memory, more than the 2.0 GiB" in verdict.reason


def test_each_case_has_calls_of_its_own() -> None:
    """The first is called until its bits differ, less often than it was called there."""
    verdict = sealed("unstable", (draw((6, 32), seeds=2), draw((32,), seeds=2)), repeat=3)
    assert [case.status for case in verdict.cases] == ["nondeterministic"] * 2


def test_no_process_is_left() -> None:
    sealed("leaves_a_daemon")
    running = (path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit())
    marks = [path.read_bytes() for path in running if path.exists()]
    assert not any(b"3141.5" in mark for mark in marks)


def test_drawn_inputs_are_others_each_time_and_drawn_again_by_their_salt() -> None:
    inputs = (draw((6, 32), seeds=2), draw((32,), seeds=2))
    first, second = (sealed("of_public_inputs", inputs) for _ in range(2))
    assert first.status == second.status == "fail"
    assert first.salt is not None
    assert first.salt != second.salt
    assert f"salt={first.salt}" in str(first)
    again = sealed("of_public_inputs", inputs, salt=first.salt)
    assert again.reason == first.reason
    assert sealed("of_public_inputs", inputs, salt=0).status == "pass"


def test_what_does_not_reach_another_process() -> None:
    with pytest.raises(UsageError, match="another process cannot import"):
        check(lambda x: x, torch.tanh, normal(3), sealed=True)
    with pytest.raises(UsageError, match=r"arguments\.0\.0 is a object: tensors, arrays"):
        check(torch.tanh, torch.tanh, (object(),), sealed=True)
    with pytest.raises(ValueError, match="sealed=True takes"):
        check("kernels.py:norm", torch.tanh, normal(3))


def test_functions_are_named_for_another_process() -> None:
    assert check(
        torch.nn.functional.silu, torch.nn.functional.silu, normal(3, 8), sealed=True
    ).passed


def test_operands_that_require_gradients() -> None:
    inputs = normal(8, 32).requires_grad_(), normal(32, seed=1).requires_grad_()
    assert sealed("right", inputs).status == "pass"
    assert sealed("without_eps", inputs).status == "fail"


def test_views_travel_as_they_are(tmp_path: Path) -> None:
    base = normal(6, 8)
    value = (base[1:3], {"t": base.mT, "n": [1, 2.5, None, "w", True, torch.float16]}, base[::2])
    travel.Packed(value, "value").save(tmp_path / "value")
    a, rest, b = travel.load(tmp_path / "value")
    assert torch.equal(a, base[1:3])
    assert torch.equal(rest["t"], base.mT)
    assert rest["n"] == [1, 2.5, None, "w", True, torch.float16]
    assert (a.stride(), b.stride(), rest["t"].stride()) == ((8, 1), (16, 1), (1, 8))
    a.fill_(7)
    assert bool((b[1] == 7).all())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"offset": 0', '"offset": 40'),
        ('"shape": [6, 8]', '"shape": [6, -8]'),
        ('"strides": [8, 1]', '"strides": [9, 1]'),
        ('"dtype": "float32"', '"dtype": "save"'),
        ('"storage": 0', '"storage": 3'),
        ('{"storage"', '[{"storage"'),
        ('"storage": 0, "dtype"', '"value": 0, "dtype"'),
    ],
)
def test_results_that_were_edited_are_refused(tmp_path: Path, old: str, new: str) -> None:
    travel.Packed(normal(6, 8), "value").save(tmp_path / "value")
    path = tmp_path / "value.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FormatError, match=r"value\.(json|safetensors)"):
        travel.load(tmp_path / "value")


def test_what_is_as_it_was_is_not_written_again(tmp_path: Path) -> None:
    given, first, second = (tmp_path / name for name in ("in-0", "out-0-0", "out-0-1"))
    x, y = normal(6, 8), normal(3)
    travel.Packed(((x, y), {}), "arguments").save(given)
    y[1] = 7
    travel.leave(x * 2, ((x, y), {}), first, given, first=None)
    travel.leave(x * 2, ((x, y), {}), second, given, first)
    assert not Path(f"{second}.safetensors").exists()
    assert travel.source(second) == first and travel.source(first) == first
    structure, storages = travel.changed(Path(f"{second}-after"))
    assert structure == travel.Packed(((x, y), {}), "arguments", gradients=False).text
    (at, held), *more = storages
    assert (at, more) == (1, []) and torch.equal(held.view(torch.float32), y.cpu())

    travel.leave(x * 3, ((x, y), {}), second, given, first)
    assert travel.source(second) == second
    assert torch.equal(travel.load(second), x * 3)


@pytest.mark.parametrize("name", ["../out-0-0", "in-0", "out-0-0/..", 3])
def test_a_result_is_that_of_another_call_alone(tmp_path: Path, name: Any) -> None:
    (tmp_path / "out-0-1.json").write_text(json.dumps({travel.SAME: name}))
    with pytest.raises(FormatError, match="expected an earlier call"):
        travel.source(tmp_path / "out-0-1")


def test_operands_that_do_not_show_which_of_them_have_rows() -> None:
    """Relations alone ask for that."""
    assert sealed("right", (normal(32, 32), normal(32, seed=1))).status == "pass"
