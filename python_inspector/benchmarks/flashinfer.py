"""flashinfer-bench's form (github.com/flashinfer-ai/flashinfer-bench): a Definition has axes,
inputs, outputs and a reference in Python, a Workload values of axes and where inputs come from, a
Solution sources and an entry point, which returns outputs or fills those that it is given last.
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
from .files import JSON, apart, fields, loaded, objects, written
from .filled import Filling
from .stated import Stated
from .tensors import dtype_of, placed, stored

LANGUAGES = ("python", "triton")
RANGES = {torch.int8: 128}
"""Random whole numbers are between minus this, else 1024, and it."""


def read(
    definition: Path, workloads: Path, solution: Path, most: int | None = None
) -> tuple[JSON, list[JSON], JSON]:
    """The three files; a workload may be within a trace, as the benchmark's sets have them."""
    every = [line.get("workload", line) for line in objects(workloads)][:most]
    return objects(definition)[0], every, objects(solution)[0]


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
    with fields("Definition, Workload or Solution"):
        name, spec = solution["name"], solution["spec"]
        if spec["language"] not in LANGUAGES:
            raise UsageError(
                f"{name} is written in {spec['language']}, which is not built here; the evaluator "
                "of benchmarks.flashinfer_traces judges what flashinfer-bench builds"
            )
        if solution["definition"] != definition["name"]:
            raise UsageError(f"{name} is of {solution['definition']}, not of {definition['name']}")
        passed = bool(spec.get("destination_passing_style", True))
        given = {str(it["uuid"]): _arguments(definition, it, root, passed) for it in workloads}
        sources = scratch / "flashinfer_solution"
        for it in solution["sources"]:
            written(sources, it["path"], it["content"])
        entry = (str(sources), *spec["entry_point"].split("::"))
        outputs = {"outputs": definition["outputs"], "inputs": list(definition["inputs"])}
        like = reference(definition, scratch / "like")
    made = Made(f"{__name__}:candidate", (entry, passed, outputs))
    return Stated(like, placed(given, device), made)


def reference(definition: JSON, scratch: Path) -> Callable[..., Any]:
    """The definition's `run`, which returns its outputs in order, and needs none of them."""
    file = written(scratch, "reference.py", definition["reference"])
    with apart(scratch):
        run = loaded(f"{file}:run")
    like = judged_call(lambda *args: run(*args[: len(definition["inputs"])]), definition)
    like.__name__ = definition["name"]
    return like


def candidate(entry: Sequence[str], passed: bool, definition: JSON) -> Callable[..., Any]:
    """In the candidate's process: the entry of a package of its sources."""
    folder, file = Path(entry[0]), Path(entry[1])
    sys.path.insert(0, str(folder.parent))
    function = load(f"{'.'.join((folder.name, *file.with_suffix('').parts))}:{entry[2]}")
    return judged_call(function, definition, passed)


def judged_call(
    function: Callable[..., Any], definition: JSON, passed: bool = False
) -> Callable[..., Any]:
    """A call's results as a tuple of tensors; ValueError where it has others than the definition
    says. Where outputs are `passed` they are memory that holds nothing."""
    specs, first = definition["outputs"], len(definition["inputs"])
    if passed:
        return Filling(function, range(first, first + len(specs)), "solution", returns=False)

    def call(*args: Any) -> tuple[torch.Tensor, ...]:
        result = function(*args)
        if isinstance(result, Mapping):
            result = [result[name] for name in specs if name in result]
        made = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(made) != len(specs):
            raise ValueError(f"{len(made)} results, expected {', '.join(specs)}")
        return tuple(
            it if isinstance(it, torch.Tensor) else torch.tensor(it, dtype=dtype_of(spec["dtype"]))
            for it, spec in zip(made, specs.values(), strict=True)
        )

    return call


def _arguments(definition: JSON, workload: JSON, root: Path, passed: bool) -> tuple[Any, ...]:
    """Of a workload, in the definition's order; those that are filled after the others."""
    axes = dict(workload["axes"])
    for axis, it in definition["axes"].items():
        if it["type"] == "const":
            axes[axis] = it["value"]
        if axis not in axes:
            raise UsageError(f"there is no value for axis {axis}")

    def value(name: str, spec: JSON, source: JSON) -> Any:
        shape, dtype = [axes[axis] for axis in spec["shape"] or ()], dtype_of(spec["dtype"])
        match source["type"]:
            case "scalar":
                return source["value"]
            case "safetensors":
                return stored(root / source["path"], source["tensor_key"], shape, dtype)
            case "random":
                made = _drawn(shape, dtype)
                if definition["op_type"] == "sampling" and name == "probs":
                    made = made.softmax(-1)
                return made.item() if spec["shape"] is None else made
            case "empty":
                return torch.zeros(shape, dtype=dtype)
        raise UsageError(f"input {name} is {source['type']}: expected random, scalar, safetensors")

    given = {name: {"type": "random"} for name in definition["inputs"]} | workload["inputs"]
    inputs = [value(name, it, given[name]) for name, it in definition["inputs"].items()]
    outputs = [value(name, it, {"type": "empty"}) for name, it in definition["outputs"].items()]
    return (*inputs, *(outputs if passed else ()))


def _drawn(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As the benchmark does."""
    if dtype.is_floating_point:
        made = torch.randn(shape, dtype=torch.float32)
        return (made.clamp(-2, 2) if dtype.itemsize == 1 else made).to(dtype)
    most = RANGES.get(dtype, 1024)
    low, high = (0, 2) if dtype == torch.bool else (-most, most)
    return torch.randint(low, high, tuple(shape), dtype=dtype)
