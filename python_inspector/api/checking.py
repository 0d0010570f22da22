"""check(): anybody's kernel against any torch module or function, without a recording on disk."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import needs
from ..format.folders import in_memory
from ..native import judge_library, judged_by
from .drawing import Draw
from .explaining import Explainer
from .keeping import CALL, LATER, keep_case, require_place
from .sealed import Made, Sealed, run_sealed
from .verdict import Verdict, WrongError, announce, by_its_verdict
from .worker_process import SealedError

if TYPE_CHECKING:
    from ..format.contract_words import Asked
    from ..recorder.axes import Axes
    from ..recorder.callables import Torch
    from ..recorder.one_call import Arguments
    from .calling import Calls, Kernel

MOST_SALT = 1 << 31
MOST_DRAWS = 64
"""Of one call: salts are so far apart."""


def check(
    function: Callable[..., Any] | str | Made,
    like: Torch,
    inputs: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    arrays: str | Callable[[Any], Any] = "torch",
    contract: str | None = None,
    bugs: bool = False,
    explain: bool | float = True,
    spread: int = 16,
    repeat: int = 2,
    axes: Axes = None,
    valid: Any = None,
    keep: Path | str | None = None,
    sealed: bool | Sealed = False,
    salt: int | None = None,
    harness: Path | str | None = None,
) -> Verdict:
    """Judges what `function` makes of the inputs against what `like` is; AssertionError if wrong.

        plumbline.check(my_norm, like=torch.nn.RMSNorm(64), inputs=(x,))

    `like` is a torch module or a function of torch code. It runs on the inputs once as it is, once
    in float64, and as `spread` simulated correct kernels: limits come from those, none is given by
    hand. `inputs` is a tuple of arguments, a dict of keyword arguments, or one tensor; a tensor
    may be a draw(...), which makes one case per seed. `weights`, by name, are keyword arguments of
    both functions; where `like` is a module they take the place of its parameters instead.

    `arrays` says what `function` is given: "torch" tensors, "numpy" arrays (16-bit floats upcast to
    float32), arrays of "jax" or "cupy" or any module with from_dlpack, or what a function of yours
    makes of a tensor. It returns what `like` returns, or the first of it, as anything with
    __dlpack__ or __array__; wider floats are accepted for 16 bits, and rounded. Results are paired
    by their place: dicts by key, tuples in order, None for what is absent.

    Afterwards the arguments are compared, too, with what `like` made of them: whole storages, and
    caches. `function` is called `repeat` times, on fresh copies; other bits in a later call are
    nondeterminism, where two runs of `like` have the same.

    `axes` names the dimensions of outputs in verdicts, "B T H D" or a dict by output; without it
    indices are told. `valid`, bools over the first dimensions of outputs, leaves rows out.
    `keep` is a folder for the case, which `harness judge` then judges again.

    `sealed` (True, or Sealed(timeout=seconds, memory=bytes)) calls `function` in a process of its
    own, which has ended before a reference exists; `function` may then be the words
    "FILE.py:NAME". Drawn inputs are others each time; the verdict has the `salt` that draws them
    again.

    Where a 16-bit function rounds is inferred from its bits; `contract`, "eager" or "fused" (once,
    at the output), demands one, and "sums-16", "p-16", "reduce-16", "products-tf32", joined by "+",
    allow what fixtures/schema/contracts.json says. Bugs are planted in `like` for up to five
    seconds: a failure is named after the one that it is, a pass says which it is blind to.
    `explain` is False for none of that, or another number of seconds; `bugs` tells all kinds of
    bugs that would pass, however long that takes. The AssertionError's text is the verdict; else
    the verdict comes back. Raises RecordError where `like` cannot be recorded, HarnessError where
    there is no judge, and whatever `function` raises.
    """
    __tracebackhide__ = by_its_verdict  # pytest shows the test's own line
    needs.require("check()", "torch", "transformers")
    from ..format.contract_words import asked
    from ..recorder.callables import name_of
    from .calling import Kernel

    if repeat < 1:
        raise ValueError(f"repeat is {repeat}: the function is called once at least")
    if isinstance(function, (str, Made)) and not sealed:
        raise ValueError(f"{function!r} is a function's name, which sealed=True takes")
    if keep is not None:
        require_place(Path(keep))
    wanted, given = asked(contract), weights or {}
    if sealed and salt is None and draws_of(inputs):
        salt = secrets.randbelow(MOST_SALT)
    cases = list(cases_of(inputs, salt or 0))

    def judged(kernel: Kernel) -> Verdict:
        recording = Like(like, given, spread, axes, valid, wanted)
        with judged_by(harness):
            judge_library()  # without one nothing needs to be recorded
            return _judged(kernel, recording, cases, explain, bugs, keep)

    if sealed:
        _load_the_judge(harness)
        how = sealed if isinstance(sealed, Sealed) else Sealed()
        whole = [(args, {**kwargs, **given}) for _, (args, kwargs) in cases]
        try:
            with run_sealed(function, whole, how, arrays=arrays, repeat=repeat) as replayed:
                verdict = judged(Kernel(replayed, given, "torch", repeat))
        except SealedError as error:
            verdict = Verdict(name_of(like), "module", "error", f"the function {error}", {})
        verdict = replace(verdict, salt=salt)
    else:
        assert not isinstance(function, (str, Made))
        verdict = judged(Kernel(function, given, arrays, repeat))
    announce(verdict)
    if not verdict.passed:
        raise WrongError(verdict)
    return verdict


def _load_the_judge(harness: Path | str | None) -> None:
    """All code that judges is in memory before a sealed function could change its files."""
    from ..recorder import explanation, measured, one_call  # noqa: F401

    with judged_by(harness):
        judge_library()


@dataclass(frozen=True)
class Like:
    """What a function is judged against, and how it is recorded."""

    function: Torch
    weights: Mapping[str, Any]
    spread: int
    axes: Axes
    valid: Any
    contract: Asked


def _judged(
    kernel: Kernel,
    like: Like,
    cases: list[tuple[str | None, Arguments]],
    explain: bool | float,
    bugs: bool,
    keep: Path | str | None,
) -> Verdict:
    """What the judge says of a kernel on all cases."""
    from ..recorder.left_out import Valid
    from ..recorder.one_call import OneCallRecording

    wanted = like.contract
    judge = Judge(wanted.rounding)
    with tempfile.TemporaryDirectory(prefix="plumbline-", dir=in_memory()) as name:
        folder = Path(name)
        with OneCallRecording(
            like.function,
            folder / CALL,
            weights=like.weights,
            spread=like.spread,
            axes=like.axes,
            valid=None if like.valid is None else Valid(like.valid),
            inside=wanted.inside,
        ) as recording:
            kept = [recording.add(arguments, case) for case, arguments in cases]
            recording.commit()
        calls = [
            kernel.call(call.observed, arguments)
            for call, (_, arguments) in zip(kept, cases, strict=True)
        ]
        troubled = any(it.faults or it.unstable for it in calls)  # no bug of `like` explains that
        measures = wanted.rounding is None and keep is None
        explain = False if troubled else explain
        explainer = Explainer(kept, judge, explain, every=bugs, measures=measures)
        first = explainer.judged([it.first.outputs for it in calls], folder, recording.another)
        later = Explainer(kept, judge, False, every=False, measures=measures).judged(
            [it.again.outputs if it.again else {} for it in calls],
            folder,
            recording.another,
            LATER,
        )
        replay = "" if keep is None else keep_case(folder, Path(keep), wanted.rounding)
    ids = [call.checkpoint.id for call in kept]
    verdicts = [
        concluded(id, it, first.get(id), later.get(id)) for id, it in zip(ids, calls, strict=True)
    ]
    verdict = explainer.blinded(combined(verdicts))
    if replay:
        verdict = replace(verdict, replay=replay)
        print(f"{verdict.checkpoint}: {verdict.status}; again: {replay}")
    return verdict


def arguments_of(inputs: Any) -> Arguments:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if type(inputs) in (tuple, list) else (inputs,)), {}


def draws_of(inputs: Any) -> list[Draw]:
    args, kwargs = arguments_of(inputs)
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Draw)]


def cases_of(inputs: Any, salt: int = 0) -> Iterator[tuple[str | None, Arguments]]:
    """The arguments of each call; those that are drawn give one per seed, with its kind."""
    args, kwargs = arguments_of(inputs)
    draws = draws_of(inputs)
    if not draws:
        yield None, (args, kwargs)
        return
    for seed in range(max(d.seeds for d in draws)):
        salts = {id(d): own for own, d in enumerate(draws, salt * MOST_DRAWS)}

        def made(value: Any, seed: int = seed, salts: dict[int, int] = salts) -> Any:
            drawn = isinstance(value, Draw)
            return value.tensor(seed, salts[id(value)]) if drawn else value

        yield (
            draws[0].kind(seed),
            (tuple(map(made, args)), {name: made(value) for name, value in kwargs.items()}),
        )


@dataclass(frozen=True)
class Judge:
    """The library beside the harness; HarnessError where there is none."""

    contract: str | None

    def __call__(self, recording: Path, outputs: Path) -> list[Verdict]:
        contract = self.contract or "inferred"
        items = judge_library().judge(recording, outputs, contract=contract, margins=False)
        return [Verdict.of(item) for item in items]


def concluded(id: str, calls: Calls, judged: Verdict | None, again: Verdict | None) -> Verdict:
    """What the judge says of a case's outputs, and what else there is to say of its calls."""
    verdict = judged or Verdict(
        id, "module", "pass", "all outputs are empty, as they should be", {}
    )
    wrong = verdict.status not in ("pass", "blind", "unsupported")
    faults = list(calls.faults)
    if again is not None and not wrong and again.status == "fail":
        faults.append(f"in a later call: {again.reason}")
    not_judged = (*verdict.not_judged, *calls.first.not_judged)
    verdict = replace(verdict, not_judged=not_judged)
    alone = next(iter(calls.first.outputs), "")
    if wrong and len(calls.first.outputs) == 1 and alone.endswith("_after"):
        verdict = replace(verdict, reason=f"{alone}: {verdict.reason}")
    if calls.first.faults or (faults and not calls.unstable):
        told = [*faults, verdict.reason] if wrong else faults
        return replace(verdict, status="fail", reason="; ".join(told))
    if calls.unstable and not wrong:
        return replace(
            verdict, status="nondeterministic", reason="; ".join([calls.unstable, *faults])
        )
    return verdict


def combined(verdicts: list[Verdict]) -> Verdict:
    """One verdict on all cases: the first that is wrong, or a pass if any case proves something."""
    if len(verdicts) == 1:
        return verdicts[0]
    wrong = [v for v in verdicts if v.status not in ("pass", "blind")]
    passed = sum(v.passed for v in verdicts)
    name = verdicts[0].checkpoint.partition(":")[0]
    worst = wrong[0] if wrong else next((v for v in verdicts if v.passed), verdicts[0])
    reason = f"{passed} of {len(verdicts)} cases pass"
    if not worst.passed:
        reason += "\n" + "\n".join(f"  {v}" for v in wrong or verdicts[:1])
    return replace(worst, checkpoint=name, reason=reason, diagnosis="", cases=tuple(verdicts))
