"""prepare(): one recording for many kernels, the verdicts of check(), no kernel spoils the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal
from torch.nn import functional

from python_inspector import Prepared, UsageError, Verdict, WrongError, check, draw, prepare
from python_inspector.native import JudgeLibrary
from python_inspector.recorder import explanation
from python_inspector.recorder.one_call import OneCallRecording
from python_inspector.trace import reruns

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Callable[..., Any]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def norm_at_once(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (weight.float() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).to(
        x.dtype
    )


def without_the_last(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide[:, :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
    return weight * (wide * torch.rsqrt(mean + 1e-5)).to(x.dtype)


def destroys(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = norm(x, weight)
    x.zero_()
    weight.fill_(torch.nan)
    return out


def unstable() -> Kernel:
    calls: list[None] = []

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return norm(x, weight) * (1 if len(calls) % 2 else 1.5)

    return kernel


NORMS: list[Kernel] = [
    norm, norm_at_once, without_the_last, destroys,
    lambda x, w: norm(x, w, 1e-3),
    lambda x, w: norm(x, w) * 1.003,
    lambda x, w: norm(x, w)[:, :-1],
    lambda x, w: norm(x, w).double(),
    lambda x, w: norm(x, w) * torch.nan,
    lambda x, w: None,
    lambda x, w: functional.layer_norm(x, x.shape[-1:], w),
    norm,
]  # fmt: skip


def verdict_of(judge: Callable[..., Verdict], *arguments: Any) -> Verdict:
    try:
        return judge(*arguments)
    except WrongError as error:
        return error.verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_verdicts_are_those_of_check(dtype: torch.dtype) -> None:
    inputs = (normal(24, 64, dtype=dtype), normal(64, dtype=dtype, seed=6))
    judge = prepare(norm, inputs)
    statuses = set()
    for kernel in NORMS:
        mine = verdict_of(judge, kernel)
        theirs = verdict_of(check, kernel, norm, inputs)
        assert mine.to_json() == theirs.to_json()
        assert str(mine) == str(theirs)
        statuses.add(mine.status)
    assert statuses == {"pass", "fail"}
    again = verdict_of(judge, unstable())
    assert again.status == "nondeterministic"
    assert again.to_json() == verdict_of(check, unstable(), norm, inputs).to_json()


def choices(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"at": x.argmax(-1), "largest": x.amax(-1), "sums": x.cumsum(-1)}


def append(x: torch.Tensor, cache: list[torch.Tensor]) -> None:
    cache[0].add_(x)


@pytest.mark.parametrize(
    ("like", "inputs", "kernels"),
    [
        (choices, normal(6, 32), [choices, lambda x: choices(x + x.roll(1, -1))]),
        (torch.softmax, {"input": normal(4, 40), "dim": -1}, [torch.softmax]),
        (torch.tanh, draw((4, 16)), [torch.tanh, torch.sin]),
        (append, (normal(3, 8), [normal(3, 8, seed=2)]), [append, lambda x, cache: None]),
    ],
)
def test_of_other_results_and_of_several_cases(
    like: Kernel, inputs: Any, kernels: list[Kernel]
) -> None:
    judge = prepare(like, inputs)
    for kernel in [*kernels, *kernels]:
        mine = verdict_of(judge, kernel)
        theirs = verdict_of(check, kernel, like, inputs)
        assert mine.to_json() == theirs.to_json()


def test_operands_are_copied() -> None:
    inputs = (normal(8, 32), normal(32, seed=6))
    judge = prepare(norm, inputs)
    with pytest.raises(WrongError, match="argument x was changed"):
        judge(destroys)
    for t in inputs:
        t.zero_()
    assert judge(norm).status == "pass"
    with pytest.raises(WrongError):
        judge(without_the_last)


def test_other_weights_are_noticed() -> None:
    module = torch.nn.Linear(16, 8).eval()
    judge = prepare(module, normal(4, 16))
    assert judge(module).status == "pass"
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(UsageError, match="other weights"):
        judge(module)


def test_threads_share_one() -> None:
    inputs = (normal(16, 48), normal(48, seed=6))
    judge = prepare(norm, inputs)
    running: list[None] = []

    def alone_in_the_process(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        running.append(None)
        time.sleep(0.01)
        assert len(running) == 1
        running.pop()
        return norm_at_once(x, weight)

    kernels = [norm, without_the_last, alone_in_the_process, destroys] * 3
    found: dict[int, Verdict] = {}

    def run(at: int) -> None:
        found[at] = verdict_of(judge, kernels[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(kernels))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = [verdict_of(judge, kernel) for kernel in kernels[:4]]
    assert [it.status for it in alone] == ["pass", "fail", "pass", "fail"]
    for at in range(len(kernels)):
        assert found[at].to_json() == alone[at % 4].to_json()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often calls are recorded, recordings written, and files judged."""
    count = {"add": 0, "save": 0, "judge": 0}
    for kind, name in ((OneCallRecording, "add"), (OneCallRecording, "save"),
                       (JudgeLibrary, "judge")):  # fmt: skip
        original = getattr(kind, name)

        def one(
            self: Any, *args: Any, name: str = name, original: Kernel = original, **named: Any
        ) -> Any:
            count[name] += 1
            return original(self, *args, **named)

        monkeypatch.setattr(kind, name, one)
    return count


@pytest.mark.parametrize("kernel", [norm, without_the_last, lambda x, w: norm(x, w) + 1])
def test_nothing_is_recorded_or_judged_twice(kernel: Kernel, counted: dict[str, int]) -> None:
    inputs = (normal(24, 64), normal(64, seed=6))
    verdict_of(check, kernel, norm, inputs)
    assert counted == {"add": 1, "save": 0, "judge": 0}
    verdict_of(lambda *given: check(*given, explain=False), kernel, norm, inputs)
    assert counted == {"add": 2, "save": 1, "judge": 1}


def test_another_kernel_needs_its_judgement_alone(
    counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[None] = []
    original = explanation.blind_spots

    def noted(*given: Any) -> Any:
        looked.append(None)
        return original(*given)

    monkeypatch.setattr(explanation, "blind_spots", noted)
    judge = prepare(norm, (normal(24, 64), normal(64, seed=6)))
    judge(norm)
    judge(norm)
    assert counted == {"add": 1, "save": 0, "judge": 0}
    assert len(looked) == 1
    judge = prepare(norm, (normal(24, 64), normal(64, seed=6)), explain=False)
    judge(norm)
    judge(norm)
    assert counted == {"add": 2, "save": 1, "judge": 2}


def test_its_files_go_with_it() -> None:
    judge = prepare(torch.tanh, normal(4, 8), explain=False)
    judge(torch.tanh)
    folder: Path = judge._files.folder
    assert (folder / "call" / "recording.json").is_file()
    assert isinstance(judge, Prepared)
    del judge
    assert not folder.exists()


@pytest.mark.parametrize(
    "place", [(OneCallRecording, "add"), (reruns, "exactly"), (reruns, "simulate")]
)
def test_where_a_gpu_has_no_memory_to_judge_nothing_is_said_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    text = (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 1.68 GiB is free. Process 3272 has 112.72 GiB memory in use."
    )

    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError(text)

    monkeypatch.setattr(*place, full)
    with pytest.raises(WrongError) as found:
        check(torch.tanh, like=torch.tanh, inputs=(normal(2, 3),))
    verdict = found.value.verdict
    assert (verdict.status, verdict.reason) == (
        "blind",
        "too large to be judged: 4.00 GiB more are needed, GPU 0 has 139.80 GiB of which 1.68 GiB "
        "is free; judge fewer rows",
    )
