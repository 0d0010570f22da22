"""propose(): which module or weight of theirs is which recorded one, by shapes and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..format.model_files import open_files, read_tensor
from ..format.named_recordings import recording_folder
from ..format.strict_json import load_json
from . import layouts

NEAR = 0.05
"""Relative difference up to which an output is taken for the recorded one: an engine may be wrong
by much more, and then the layers before it are found."""


@dataclass(frozen=True)
class Proposal:
    """`theirs` is `recorded` after `transform`, a name of layouts.py or ""; `error`: relative."""

    theirs: str
    recorded: str
    transform: str
    error: float

    def __str__(self) -> str:
        words = f"{self.theirs:44} {self.recorded:44} {self.transform:24}"
        return f"{words} {self.error:.1e}" if self.error else words.rstrip()


def propose(
    model: Any, recording: Path | str, run: Callable[[Any], Any]
) -> tuple[list[Proposal], list[Proposal]]:
    """Outputs of modules while `run(ids)` runs on the first step's ids, and parameters.

    `model` is a torch module, `run` a function of [batch, tokens]. Of each recorded output the
    nearest module is proposed; of modules that give the same, the outermost.
    """
    import torch

    folder = recording_folder(Path(recording))
    document = load_json(folder / "recording.json")
    files = open_files(folder, document)

    def stored(key: str) -> Any:
        return read_tensor(files, document["tensors"], key)

    outputs, ids = [], None
    for entry in document["checkpoints"]:
        if entry["step"] == 0 and entry["call"] == 0:
            if entry["block"] == "embedding":
                ids = stored(entry["inputs"]["ids"]["tensor"])
            place = entry["id"].rpartition("#")[0]
            for name, output in entry["outputs"].items():
                if "tensor" in output and "rows" not in output:
                    suffix = "" if name == "out" else f"/{name}"
                    outputs.append((place + suffix, stored(output["tensor"])))
    taken = _outputs_of(model, run, ids)
    with torch.no_grad():
        modules = [found for place, value in outputs if (found := _nearest(place, value, taken))]
        weights = {name: files["weights"].read(name) for name in files["weights"].tensors}
        parameters = list(_weights(dict(model.named_parameters()), weights, document["config"]))
    return modules, parameters


def _outputs_of(model: Any, run: Callable[[Any], Any], ids: Any) -> dict[str, Any]:
    import torch

    taken: dict[str, Any] = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            value = getattr(value, "logits", value)
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                taken.setdefault(path, value.detach().clone())

        return keep

    removers = [
        module.register_forward_hook(hook(path)).remove for path, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            run(ids)
    finally:
        for remove in removers:
            remove()
    return taken


def _nearest(place: str, recorded: Any, taken: dict[str, Any]) -> Proposal | None:
    best: Proposal | None = None
    for path, value in taken.items():
        if value.numel() != recorded.numel() or not recorded.is_floating_point():
            continue
        for name, moved in _orders(value, tuple(recorded.shape)):
            error = _difference(moved, recorded)
            shorter = best is None or len(path.split(".")) < len(best.theirs.split("."))
            if best is None or error < 0.99 * best.error or (error == best.error and shorter):
                best = Proposal(path, place, name, error)
    return best if best is not None and best.error <= NEAR else None


def _orders(value: Any, shape: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The value as it is, cut into heads, with axes exchanged, with rotary pairs apart."""
    if tuple(value.shape) == shape:
        yield "", value
    if len(shape) == 4 and value.dim() == 3:
        heads = value.reshape(*value.shape[:2], -1, shape[-1])
        if tuple(heads.shape) == shape:
            yield f"heads({heads.shape[2]})", heads
        if tuple(heads.transpose(1, 2).shape) == shape:
            yield f"heads({heads.shape[2]}), btnh to bnth", heads.transpose(1, 2)
    if len(shape) == 4 and value.dim() == 4:
        moved = value.transpose(1, 2)
        if tuple(moved.shape) == shape:
            yield "btnh to bnth", moved
        for name, each in (("", value), ("btnh to bnth, ", moved)):
            if tuple(each.shape) == shape and shape[-1] % 2 == 0:
                yield f"{name}half_from_interleaved", layouts.half_from_interleaved(shape[-1])(each)
    if value.dim() == len(shape) == 3 and value.shape[0] == shape[1] and value.shape[1] == shape[0]:
        yield "tbc to btc", value.transpose(0, 1)


def _difference(value: Any, recorded: Any) -> float:
    wide = recorded.double()
    return float((value.double() - wide).norm() / wide.norm().clamp_min(1e-30))


def _weights(theirs: dict[str, Any], recorded: dict[str, Any], config: Any) -> Iterator[Proposal]:
    """Parameters whose elements are a recorded weight's, or hold it in their rows."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    forms: dict[str, layouts.Transform] = {
        "": layouts.identity,
        "transposed": layouts.transposed,
        "plus_one": layouts.plus_one,
        "interleaved_from_half": layouts.interleaved_from_half(size, axis=0),
    }
    for name, weight in recorded.items():
        for path, parameter in theirs.items():
            for form, transform in forms.items():
                row = _row_of(parameter, weight, form, transform)
                if row is not None:
                    rows = f"rows {row}-{row + weight.shape[0] - 1}"
                    whole = parameter.shape[0] == transform(weight).shape[0]
                    words = [form] if whole else [rows, form]
                    yield Proposal(path, name, ", ".join(filter(None, words)), 0.0)
                    break


def _row_of(parameter: Any, weight: Any, form: str, transform: layouts.Transform) -> int | None:
    """The first row of the parameter that holds the weight; None where it does not."""
    import torch

    if (form == "transposed" and weight.dim() != 2) or (form == "plus_one" and weight.dim() != 1):
        return None
    if form == "interleaved_from_half" and "_proj" not in form and weight.shape[0] % 2:
        return None
    try:
        wanted = transform(weight)
    except ValueError:
        return None
    if parameter.shape[1:] != wanted.shape[1:] or parameter.shape[0] < wanted.shape[0]:
        return None
    same = (parameter == wanted[0]).reshape(parameter.shape[0], -1).all(1)
    for row in same.nonzero().flatten().tolist():
        if torch.equal(parameter[row : row + wanted.shape[0]], wanted.to(parameter.dtype)):
            return int(row)
    return None
