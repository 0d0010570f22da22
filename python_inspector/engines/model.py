"""verify_model(): a whole external model, judged against the chained float64 run."""

from __future__ import annotations

import difflib
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import needs
from ..api.verdict import Verdict
from ..api.verification import judge_with_binary
from ..format.operands import Output, output_of, save
from ..native import find_harness
from .steps import Place, RecordedRun, Step

Model = Callable[..., Any]
Arrays = dict[str, Any]


def verify_model(
    function: Model,
    recording: Path | str,
    *,
    arrays: str = "torch",
    rows: bool = False,
    keep: Path | str | None = None,
    harness: Path | str | None = None,
) -> Verdict:
    """Runs `function` on the ids of a chained recording; judges its logits, and layers if given.

    What the function takes says how it is called:

    - `function(ids)`: once, with [batch, all tokens of the sequence], as a prefill without a cache.
    - `function(ids, cache)`: in every recorded step, prefill and decode, with what it returned
      along with the logits in the step before; None where a sequence begins.
    - `function(ids, step)`: the same, but it keeps its cache itself; `step` is a Step: position,
      whether a sequence begins, room that is needed, padding.

    `rows` calls it for one row of the batch after the other, without its padding.

    It returns logits [batch, tokens, vocab] (anything with an attribute `logits` will do), or a
    dict of "logits" and outputs of modules by recorded path, "model.layers.3"; with these the
    verdict names the first layer that is wrong. Arrays of torch, NumPy, JAX or MLX; float32 of a
    16-bit model is taken as it is. `keep`: where to write what `harness judge --mode chained` read.

    Raises HarnessError without a harness, FormatError where the recording is not chained.
    """
    if arrays not in ("torch", "numpy"):
        raise ValueError(f"arrays is {arrays!r}, expected torch or numpy")
    if arrays == "torch":
        needs.require("verify_model() with torch tensors", "torch")
    binary = find_harness(harness)
    run = RecordedRun(recording)
    outputs: dict[str, Output] = {}
    for sequence in run.sequences():
        made = _by_row(function, run, sequence, arrays) if rows else None
        made = made or _called(function, run, sequence, arrays)
        for step, tensors in zip(sequence, made, strict=True):
            outputs |= _placed(run.places(step), tensors, step)
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        results = Path(keep) if keep else Path(name) / "outputs.safetensors"
        save(outputs, results)
        command = [binary, "judge", "--mode", "chained", run.folder, results]
        return judge_with_binary(command, Path(name) / "verdicts.json", ["(chain)"])["(chain)"]


def _style(function: Model) -> str:
    """What the function takes: "ids", "cache" or "step"."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        return "ids"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or positional[1].default is not positional[1].empty:
        return "ids"
    return "cache" if positional[1].name == "cache" else "step"


def _called(function: Model, run: RecordedRun, sequence: list[int], arrays: str) -> list[Arrays]:
    """What the function gave of every step of a sequence, by its own names."""
    return list(_steps_of(function, list(run.steps(sequence)), arrays))


def _steps_of(function: Model, steps: list[Step], arrays: str) -> Iterator[Arrays]:
    style = _style(function)
    if style == "ids":
        ids = np.concatenate([step.ids for step in steps], axis=1)
        yield from _cut(_named(function(_given(ids, arrays))), steps)
        return
    cache = None
    for step in steps:
        ids = _given(step.ids, arrays)
        if style == "step":
            yield _named(function(ids, step))
            continue
        returned = function(ids, cache)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"function(ids, cache) returned a {type(returned).__name__}, expected a pair: the "
                f"logits (or a dict) and the cache for the next step"
            )
        cache = returned[1]
        yield _named(returned[0])


def _by_row(function: Model, run: RecordedRun, sequence: list[int], arrays: str) -> list[Arrays]:
    """The same of each row alone, put together; padding, which is not judged, is zero."""
    rows: list[list[Arrays]] = []
    steps = list(run.steps(sequence))
    for row in range(run.batch):
        pad = steps[0].padding[row]
        mine = [_row_of(step, row, pad) for step in steps]
        rows.append(list(_steps_of(function, mine, arrays)))
        for name, value in rows[-1][0].items():
            if pad:
                rows[-1][0][name] = _padded(name, _array(value), pad)
    return [
        {name: np.concatenate([_array(each[i][name]) for each in rows]) for name in rows[0][i]}
        for i in range(len(steps))
    ]


def _row_of(step: Step, row: int, pad: int) -> Step:
    begin = pad if step.first else 0
    position = step.position - (0 if step.first else pad)
    ids = step.ids[row : row + 1, begin:]
    return Step(step.index, ids, position, step.total - pad, (0,), step.config)


def _padded(name: str, value: Any, pad: int) -> Any:
    axis = 2 if name.endswith(("keys_after", "values_after")) else 1
    widths = [(0, 0)] * value.ndim
    widths[axis] = (pad, 0)
    return np.pad(value, widths)


def _array(value: Any) -> Any:
    """As a NumPy array, bf16 as the float32 that it equals."""
    output = output_of(value)
    if output.dtype == "bf16":
        wide = np.frombuffer(output.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(output.shape)
    kinds = {"f64": "<f8", "f32": "<f4", "f16": "<f2"}
    if output.dtype not in kinds:
        raise TypeError(f"an output is {output.dtype}, expected floats")
    return np.frombuffer(output.data, kinds[output.dtype]).reshape(output.shape)


def _given(ids: Any, arrays: str) -> Any:
    if arrays == "numpy":
        return ids
    import torch

    return torch.from_numpy(np.ascontiguousarray(ids))


def _named(returned: Any) -> Arrays:
    if isinstance(returned, Mapping) and not hasattr(returned, "logits"):
        return dict(returned)
    return {"logits": getattr(returned, "logits", returned)}


def _cut(named: Arrays, steps: list[Step]) -> Iterator[Arrays]:
    """Outputs of all tokens, cut into those of every step."""
    if len(steps) == 1:
        yield named
        return
    total = sum(step.tokens for step in steps)
    for name, value in named.items():
        if name.endswith(("keys_after", "values_after", "state_after")):
            raise ValueError(f"{name}: a cache is of one step; take function(ids, step)")
        if len(value.shape) < 2 or value.shape[1] != total:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; the sequence has {total} tokens: expected "
                f"[batch, {total}, ...]. A model that needs its steps: function(ids, cache)"
            )
    for step in steps:
        end = step.position + step.tokens
        yield {name: value[:, step.position : end] for name, value in named.items()}


def _placed(places: Mapping[str, Place], named: Arrays, step: int) -> dict[str, Output]:
    found: dict[str, Output] = {}
    for name, value in named.items():
        if name not in places:
            near = difflib.get_close_matches(name, places, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"step {step} of the recording has no chained output {name}{hint}")
        try:
            found[places[name].name] = output_of(value)
        except TypeError as error:
            raise TypeError(f"{name} in step {step} {error}") from None
    return found
