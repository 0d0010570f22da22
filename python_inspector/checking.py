"""check(): anybody's kernel against any torch module or function, without a recording on disk."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import needs
from .drawing import Draw
from .errors import HarnessError
from .explaining import Explainer
from .format.operands import Output, output_of, save
from .judge_library import find_library, opened
from .verdict import Verdict, WrongError
from .verification import find_harness, judge_with_binary

if TYPE_CHECKING:
    from .format.recording import Checkpoint
    from .recorder.one_call import Arguments, Torch

IN_MEMORY = Path("/dev/shm")


def check(
    function: Callable[..., Any],
    like: Torch,
    inputs: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    arrays: str | Callable[[Any], Any] = "torch",
    contract: str | None = None,
    bugs: bool = False,
    explain: bool | float = True,
    spread: int = 16,
    harness: Path | str | None = None,
) -> Verdict:
    """Judges what `function` makes of the inputs against what `like` is; AssertionError if wrong.

        python_inspector.check(my_norm, like=torch.nn.RMSNorm(64), inputs=(x,))

    `like` is a torch module or a function of torch code. It runs on the inputs once as it is, once
    in float64, and as `spread` simulated correct kernels: limits come from those, none is given by
    hand. `inputs` is a tuple of arguments, a dict of keyword arguments, or one tensor; a tensor
    may be a draw(...), which makes one case per seed. `weights`, by name, are keyword arguments of
    both functions; where `like` is a module they take the place of its parameters instead.

    `arrays` says what `function` is given: "torch" tensors, "numpy" arrays (16-bit floats upcast to
    float32), arrays of "jax" or "cupy" or any module with from_dlpack, or what a function of yours
    makes of a tensor. It returns what `like` returns, or the first of it, as anything with
    __dlpack__ or __array__; wider floats are accepted for 16 bits, and rounded.

    Where a 16-bit function rounds is inferred from its bits; `contract`, "eager" or "fused" (once,
    at the output), demands one. Bugs are planted in `like` for up to five seconds: a failure is
    named after the one that it is, a pass says which it is blind to. `explain` is False for none of
    that, or another number of seconds; `bugs` tells all kinds of bugs that would pass, however long
    that takes. The AssertionError's text is the verdict; else the verdict comes
    back. Raises RecordError where `like` cannot be recorded, HarnessError where there is no judge,
    and whatever `function` raises.
    """
    needs.require("check()", "torch", "transformers")
    from .recorder.one_call import OneCallRecording

    given, judge = weights or {}, Judge(contract, harness)
    cases = list(cases_of(inputs))
    home = str(IN_MEMORY) if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="plumbline-", dir=home) as name:
        folder = Path(name)

        with OneCallRecording(like, folder / "call", weights=given, spread=spread) as calls:
            kept = [calls.add(arguments, case) for case, arguments in cases]
            calls.commit()
        results: dict[str, Output] = {}
        for call, (_, arguments) in zip(kept, cases, strict=True):
            results |= _run(function, call.checkpoint, arguments, given, arrays)
        save(results, folder / "outputs.safetensors")
        verdicts = judge(folder / "call", folder / "outputs.safetensors")
        explainer = Explainer(kept, results, judge, explain, every=bugs)
        verdicts = explainer.explained(verdicts, calls.another, folder)
    verdict = explainer.blinded(combined(verdicts))
    if not verdict.passed:
        raise WrongError(verdict)
    return verdict


def cases_of(inputs: Any) -> Iterator[tuple[str | None, Arguments]]:
    """The arguments of each call; those that are drawn give one per seed, with its kind."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = tuple(inputs) if type(inputs) in (tuple, list) else (inputs,)
    draws = [value for value in (*args, *kwargs.values()) if isinstance(value, Draw)]
    if not draws:
        yield None, (args, kwargs)
        return
    for seed in range(max(d.seeds for d in draws)):
        salts = {id(d): salt for salt, d in enumerate(draws)}

        def made(value: Any, seed: int = seed, salts: dict[int, int] = salts) -> Any:
            drawn = isinstance(value, Draw)
            return value.tensor(seed, salts[id(value)]) if drawn else value

        yield (
            draws[0].kind(seed),
            (tuple(map(made, args)), {name: made(value) for name, value in kwargs.items()}),
        )


def _run(
    function: Callable[..., Any],
    recorded: Checkpoint,
    arguments: Arguments,
    weights: Mapping[str, Any],
    arrays: str | Callable[[Any], Any],
) -> dict[str, Output]:
    """What the function makes of one case, by the names that the judge knows."""
    given = given_as(arrays)
    args, kwargs = given(arguments[0]), given({**arguments[1], **weights})
    returned = by_name(function(*args, **kwargs), sorted(recorded.outputs, key=_order))
    outputs = {}
    for name, value in returned.items():
        try:
            outputs[f"{recorded.id}/{name}"] = output_of(as_array(value))
        except TypeError as error:
            raise TypeError(f"the function's output {name} {error}") from None
    return outputs


def given_as(arrays: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What puts copies of all tensors in a nested value into the arrays that were asked for."""
    import torch

    from .recorder.one_call import copied

    convert: Callable[[Any], Any]
    if arrays == "torch":
        return copied
    if arrays == "numpy":
        convert = _to_numpy
    elif isinstance(arrays, str):
        convert = importlib.import_module({"jax": "jax.numpy"}.get(arrays, arrays)).from_dlpack
    else:
        convert = arrays

    def given(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return convert(value.detach().clone())
        if isinstance(value, dict):
            return {key: given(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(given(item) for item in value)
        return value

    return given


def _to_numpy(tensor: Any) -> Any:
    wide = tensor.is_floating_point() and tensor.itemsize < 4
    return (tensor.float() if wide else tensor).cpu().numpy()


def as_array(value: Any) -> Any:
    """A torch tensor or NumPy array of anything that offers itself as one."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor | np.ndarray | np.generic | float | int):
        return np.asarray(value) if isinstance(value, float | int) else value
    if hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # a dtype or device that it does not hand over that way
    return np.asarray(value) if hasattr(value, "__array__") else value


def by_name(returned: Any, expected: Sequence[str]) -> dict[str, Any]:
    """The function's results by the names of the outputs of `like`: as it names them, or in order.

    What a result holds inside is taken in order, too.
    """
    if isinstance(returned, Mapping) and returned and returned.keys() <= set(expected):
        return dict(returned)
    values = [value for value in _leaves(returned) if value is not None]
    if not 0 < len(values) <= len(expected):
        raise AssertionError(
            f"the function returned {len(values)} results, `like` {len(expected)}: "
            f"{', '.join(expected)}"
        )
    return dict(zip(expected, values, strict=False))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def _order(name: str) -> tuple[Any, ...]:
    """out.2 before out.10, states that the call changed behind all of them."""
    parts = name.split(".")
    numbers = [(part.isdigit(), int(part) if part.isdigit() else part) for part in parts]
    return name.endswith("_after"), *numbers


@dataclass(frozen=True)
class Judge:
    """The library beside the harness where there is one, else the harness itself."""

    contract: str | None
    harness: Path | str | None

    def __call__(self, recording: Path, outputs: Path) -> list[Verdict]:
        binary = self._binary()
        library = find_library(binary)
        if library is not None:
            contract = self.contract or "inferred"
            items = opened(library).judge(recording, outputs, contract=contract, margins=False)
            return [Verdict.of(item) for item in items]
        options = [] if self.contract is None else ["--contract", self.contract]
        command = [binary or find_harness(), "judge", recording, outputs, "--no-margins", *options]
        return list(judge_with_binary(command, outputs.with_suffix(".json")).values())

    def _binary(self) -> Path | None:
        """None where the library is named, and there is no harness."""
        if self.harness is not None:
            return find_harness(self.harness)
        try:
            return find_harness()
        except HarnessError:
            return None


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
