"""check(): any kernel against any torch module or function, without a recording on disk."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import versions
from ..effort import DEFAULT_RUNS
from ..errors import UsageError
from ..native import judge_library, judged_by
from .backward import differentiated, kernel_of
from .hard import Hard, flattened, hard_cases, kinds_of
from .how import How, how_of
from .inputs import Case, cases_of, draws_of
from .invariance import planned_calls
from .keeping import require_place
from .once import SECONDS, Keep, judged_once
from .relations import Batch, Names, asked_relations
from .sealed import Extra, Made, Replayed, Sealed, Timed, run_sealed
from .verdict import Verdict, WrongError, announce, by_its_verdict
from .worker_process import SealedError

if TYPE_CHECKING:
    from ..recorder.axes import Axes
    from ..recorder.callables import Torch

MOST_SALT = 1 << 31
TIMED = "timed"
"""The case of calls that were timed."""


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
    spread: int = DEFAULT_RUNS,
    repeat: int = 2,
    axes: Axes = None,
    valid: Any = None,
    mutates: Collection[str] | None = None,
    hard: bool | Sequence[str] = False,
    keep: Path | str | None = None,
    shrink: float = SECONDS,
    sealed: bool | Sealed = False,
    salt: int | None = None,
    relations: Names = (),
    batch: Batch = None,
    harness: Path | str | None = None,
    backward: bool = False,
) -> Verdict:
    """Judges what `function` makes of the inputs against what `like` is; AssertionError if wrong.

        plumbline.check(my_norm, like=torch.nn.RMSNorm(64), inputs=(x,))

    `like` is a torch module or a function of torch code. It runs on the inputs once as it is, once
    in float64, and as `spread` simulated correct kernels: limits come from those, none is given by
    hand. `inputs` is a tuple of arguments, a dict of keyword arguments, or one tensor; a tensor
    may be a draw(...), which makes one case per seed. `weights`, by name, are keyword arguments of
    both functions; where `like` is a module they take the place of its parameters and buffers
    instead; they may be drawn, too.

    `hard=True`, or the names of some kinds, adds cases of the same shapes: the first set of
    operands and weights made signed, zero, equal, huge, infinite, denormal and so on, each where
    `like` survives it. That costs as many cases more (api/hard.py, python_inspector/check.md).

    `arrays` says what `function` is given: "torch" tensors, "numpy" arrays (16-bit floats upcast to
    float32), arrays of "jax" or "cupy" or any module with from_dlpack, or what a function of yours
    makes of a tensor. It returns what `like` returns, or the first of it, as anything with
    __dlpack__ or __array__; wider floats are accepted for 16 bits, and rounded. Results are paired
    by their place: dicts by key, tuples in order, None for what is absent.

    Afterwards the arguments are compared, too, with what `like` made of them: whole storages, and
    caches. `function` is called `repeat` times, on fresh copies; other bits in a later call are
    nondeterminism, where two runs of `like` have the same.

    `axes` names the dimensions of outputs in verdicts, "B T H D" or a dict by output; without it
    they give indices. `valid`, bools over the first dimensions of outputs, leaves rows out.
    `mutates` names the arguments that `function` may change: what `like` makes of them is then the
    judge, and what it leaves as it was is scratch memory; all others must stay as they were.
    Without it those are open, and judged, that `like` changes.
    `keep` is a folder for the case, which `harness judge` then judges again. Of a failure it has
    the smallest case, too, that `shrink` seconds find, with a script that compares it.

    `sealed` (True, or Sealed(timeout=seconds, memory=bytes)) calls `function` in a process of its
    own, which has ended before a reference exists; `function` may then be the words
    "FILE.py:NAME". Drawn inputs are others each time; the verdict has the `salt` that draws them
    again.

    `relations`, those of invariant(), are tried as well: ("batch", "position") demands the same
    bits of a row in further calls, {"batch": "limits"} what `like` allows. `batch` is the axis of
    the rows.

    `backward` judges gradients, too: of the floating arguments and of the parameters of `like`,
    under a random cotangent. `function` is an autograd.Function, a module whose parameters have the
    names of those of `like`, or whatever autograd can go back through.

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
    versions.require("check()", "torch")
    from .calling import Kernel

    how = how_of(
        arrays, contract, bugs, explain, spread, repeat, axes, valid, mutates, harness,
        asked_relations(relations, batch),
    )  # fmt: skip
    if isinstance(function, (str, Made)) and not sealed:
        raise ValueError(f"{function!r} is a function's name, which sealed=True takes")
    if keep is not None:
        require_place(Path(keep))
    if sealed and salt is None and draws_of(inputs, weights):
        salt = secrets.randbelow(MOST_SALT)
    cases = list(cases_of(inputs, salt or 0, weights))
    if backward:
        like, cases, how = differentiated(like, cases, how, salt or 0)
        how = replace(how, closes=not (sealed or isinstance(function, Replayed)))
    harder = hard_cases(cases[0], kinds_of(hard))
    stays = None if keep is None else Keep(Path(keep), shrink)
    if sealed:
        bounds = sealed if isinstance(sealed, Sealed) else Sealed()
        verdict = replace(_sealed(function, like, cases, harder, how, bounds, stays), salt=salt)
    else:
        assert not isinstance(function, (str, Made))
        kernel = Kernel(kernel_of(function, how), arrays, repeat, how.mutates)
        verdict = judged_once(kernel, like, cases, harder, how, stays)
    announce(verdict)
    if not verdict.passed:
        raise WrongError(verdict)
    return verdict


def _sealed(
    function: Callable[..., Any] | str | Made,
    like: Torch,
    cases: Sequence[Case],
    hard: Hard,
    how: How,
    bounds: Sealed,
    keep: Keep | None,
) -> Verdict:
    """The verdict on a function whose process has ended before a reference exists."""
    from ..recorder.callables import name_of
    from .calling import Kernel, OutputTypeError

    load_the_judge(how.harness)
    if bounds.time and how.gradients is not None:
        raise UsageError("sealed: backward and time are not asked for together")
    if bounds.time and how.relations.demands:
        raise UsageError("sealed: relations and time are not asked for together")
    whole = [it.called for it in flattened(cases, hard)]
    may_raise = range(len(cases), len(whole))
    for case in cases:
        whole += [it.called for it in planned_calls(like, case, how.relations)]
    timed, repeat = None, how.repeat
    if bounds.time:
        timed, repeat = timed_with(like, cases[0]), repeat + 1
        cases = [*cases, Case(TIMED, timed.judged, cases[0].weights)]
    try:
        with run_sealed(
            function, whole, bounds, arrays=how.arrays, repeat=how.repeat, timed=timed,
            timed_at=may_raise.start, may_raise=may_raise,
            gradients=[] if how.gradients is None else [how.gradients.asked] * len(whole),
        ) as replayed:  # fmt: skip
            kernel = Kernel(replayed, "torch", repeat, how.mutates)
            return with_extra(judged_once(kernel, like, cases, hard, how, keep), replayed.extra)
    except SealedError as error:
        reason = f"the function {error}"
    except OutputTypeError as error:
        reason = str(error)
    return Verdict(name_of(like), "module", "error", reason, {})


def timed_with(like: Torch, case: Case) -> Timed:
    """A function is timed on these arguments, and on others that nothing has seen before."""
    import torch

    from .timed import scaled

    factor, weights = 0.5 + secrets.randbelow(1 << 20) / (1 << 21), case.weights
    args, kwargs = scaled(case.arguments, factor)
    if not isinstance(like, torch.nn.Module):
        return Timed(like, (args, kwargs), (args, {**kwargs, **weights}))

    def called(*args: Any, **kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in weights}
        return torch.func.functional_call(like, own, args, kwargs)

    return Timed(called if weights else like, (args, kwargs), (args, {**kwargs, **weights}))


def with_extra(verdict: Verdict, extra: Extra) -> Verdict:
    """What passes is also held to its times and to the sanitizer."""
    timing, found = extra.timing, extra.sanitized
    if not verdict.passed:
        return verdict
    if found is not None:
        verdict = replace(verdict, sanitized=str(found))
        status = "unsupported" if found.broken else "fail" if found.findings else verdict.status
        if status != verdict.status:
            return replace(verdict, status=status, reason=str(found))
    if timing is not None and timing.disagrees:
        return replace(
            verdict, status="timer_disagrees", reason=f"timer disagrees: {timing.disagrees}"
        )
    return replace(verdict, timing=timing)


def load_the_judge(harness: Path | str | None = None) -> None:
    """All code that judges is in memory before a sealed function could change its files."""
    from torch._subclasses import schema_check_mode  # noqa: F401

    from ..recorder import explanation, large, measured, one_call  # noqa: F401
    from . import standalone  # noqa: F401

    with judged_by(harness):
        judge_library()
