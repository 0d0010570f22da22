"""flashinfer-bench's form (github.com/flashinfer-ai/flashinfer-bench): a Definition has axes,
inputs, outputs and a reference in Python, a Workload values of axes and where inputs come from, a
Solution sources and an entry point, which returns outputs or fills those that it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..api.sealed import Made
from ..errors import UsageError
from ..named_code import load
from .flashinfer_inputs import JSON, axes_of, dtype_of, shapes_of, values
from .stated import Stated, apart, loaded, placed

LANGUAGES = ("python", "triton")


def stated(
    definition: JSON,
    workloads: Sequence[JSON],
    solution: JSON,
    scratch: Path,
    *,
    root: Path = Path(),
    seed: int = 42,
    device: str = "cpu",
) -> Stated:
    """Raises UsageError where a field is missing or files do not fit together, and for solutions
    that have to be compiled."""
    torch.manual_seed(seed)
    try:
        given = {
            str(it["uuid"]): tuple(placed(v, device) for v in values(definition, it, root))
            for it in workloads
        }
        spec = solution["spec"]
        if spec["language"] not in LANGUAGES:
            raise UsageError(
                f"{solution['name']} is written in {spec['language']}, which is not built here; "
                "the evaluator of benchmarks.flashinfer_traces judges what flashinfer-bench builds"
            )
        if solution["definition"] != definition["name"]:
            raise UsageError(
                f"{solution['name']} is of {solution['definition']}, not of {definition['name']}"
            )
        for output in definition["outputs"].values():
            dtype_of(output["dtype"])
        file, _, symbol = spec["entry_point"].partition("::")
        entry = [str(_written(solution, scratch)), file, symbol]
        passed = bool(spec.get("destination_passing_style", True))
        visible = {key: definition[key] for key in ("axes", "inputs", "outputs")}
        source = definition["reference"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"no Definition, Workload or Solution: {error!r}") from None
    return Stated(
        like=reference(definition, _file(scratch / "like", "reference.py", source)),
        inputs=given,
        candidate=Made(f"{__name__}:candidate", (entry, passed, visible, device)),
    )


def reference(definition: JSON, file: Path) -> Callable[..., Any]:
    """The definition's `run`, which returns a tuple in the order of its outputs."""
    with apart(file.parent):
        run = loaded(f"{file}:run")

    def like(*args: Any) -> Any:
        return normalised(definition, run(*args))

    like.__name__ = definition["name"]
    return like


def candidate(
    entry: Sequence[str], passed: bool, definition: JSON, device: str
) -> Callable[..., Any]:
    """In the candidate's process: the entry of a package of its sources; destinations are memory
    that holds nothing."""
    folder, file = Path(entry[0]), Path(entry[1])
    sys.path.insert(0, str(folder.parent))
    function = load(f"{'.'.join((folder.name, *file.with_suffix('').parts))}:{entry[2]}")

    def call(*args: Any) -> Any:
        if not passed:
            return normalised(definition, function(*args))
        made = allocated(definition, args, device)
        function(*args, *made)
        return made

    return call


def normalised(definition: JSON, result: Any) -> tuple[torch.Tensor, ...]:
    """A result as a tuple of tensors; ValueError where it has others than the definition says."""
    specs = definition["outputs"]
    if isinstance(result, Mapping):
        result = [result[name] for name in specs if name in result]
    made = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(made) != len(specs):
        raise ValueError(f"{len(made)} results, expected {', '.join(specs)}")
    return tuple(
        it if isinstance(it, torch.Tensor) else torch.tensor(it, dtype=dtype_of(spec["dtype"]))
        for it, spec in zip(made, specs.values(), strict=True)
    )


def allocated(definition: JSON, args: Sequence[Any], device: str) -> tuple[torch.Tensor, ...]:
    """Empty outputs of the shapes that follow from the arguments."""
    bound = {
        axis: extent
        for spec, value in zip(definition["inputs"].values(), args, strict=True)
        if isinstance(value, torch.Tensor)
        for axis, extent in zip(spec["shape"] or (), value.shape, strict=True)
    }
    specs = definition["outputs"]
    shapes = shapes_of(specs, axes_of(definition, bound))
    return tuple(
        torch.empty(shape, dtype=dtype_of(spec["dtype"]), device=device)
        for shape, spec in zip(shapes, specs.values(), strict=True)
    )


def _written(solution: JSON, scratch: Path) -> Path:
    folder = scratch / "flashinfer_solution"
    for source in solution["sources"]:
        if not (folder / source["path"]).resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{solution['name']}: the source {source['path']} is outside of it")
        _file(folder, source["path"], source["content"])
    return folder


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
