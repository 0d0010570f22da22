"""Checks a recording: schema, cross references, hashes, shapes and the reference's error figures.

Every finding names the file, the field and both values. The C++ reader checks the same by hand;
both are tested on tests/data/recordings.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from ..aliases import PACKAGE
from ..errors import FormatError
from .block_table import BLOCKS, split_names
from .model_files import open_files, read_tensor
from .recording import as_number, checkpoint_id
from .safetensors_file import SafetensorsFile, read_header
from .shared_payloads import shared_findings
from .strict_json import load_json
from .validate_bugs import (
    bug_findings,
    bug_position_findings,
    member_findings,
)
from .validate_chain import chain_findings
from .validate_contracts import contract_findings, inside_findings
from .validate_model import (
    model_findings,
    position_findings,
    trace_findings,
    version_findings,
)
from .validate_sampled import sampled_findings, token_findings
from .validate_tensors import table_findings

RECORDING = "recording.json"
SCHEMA = resources.files(PACKAGE) / "data" / "recording.schema.json"
ERROR_TOLERANCE = 1e-5
"""Relative: `delta` is rounded to float32, so a recomputed figure differs in the eighth digit."""


def find_recordings(path: Path) -> list[Path]:
    """The recording at `path`, or all below it; FormatError if there is none."""
    if path.name == RECORDING:
        path = path.parent
    if (path / RECORDING).exists():
        return [path]
    found = sorted(
        p.parent
        for p in path.rglob(RECORDING)
        if not any(part.startswith(".") for part in p.relative_to(path).parts)
    )
    if not found:
        raise FormatError(f"{path}: no {RECORDING} here or below")
    return found


def validate(folder: Path) -> list[str]:
    """What is wrong with the recording in `folder`, a text per finding; empty if it is valid."""
    path = folder / RECORDING
    try:
        recording = load_json(path)
    except FormatError as error:
        return [str(error)]
    if findings := [f"{path}: {text}" for text in json_findings(recording)]:
        return findings
    return list(_file_findings(folder, recording))


def json_findings(recording: Any) -> list[str]:
    """What is wrong with the parsed recording.json, its files not looked at."""
    return list(schema_findings(recording)) or list(_reference_findings(recording))


def schema_findings(recording: Any) -> Iterator[str]:
    """Deviations from recording.schema.json, the field first."""
    for error in sorted(_validator().iter_errors(recording), key=lambda e: list(map(str, e.path))):
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
        yield f"{field.removeprefix('.') or 'recording'}: {_short(error.message)}"


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def is_integer(_: Any, value: Any) -> bool:
        return type(value) is int  # JSON Schema takes 2.0 for an integer; the format does not

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    validator = extend(Draft202012Validator, type_checker=checker)
    return validator(json.loads(SCHEMA.read_text()))


def _reference_findings(recording: Mapping[str, Any]) -> Iterator[str]:
    """What the schema cannot say: names must exist and fit each other."""
    table, referred = recording["tensors"], recording.get("model_files", {}).get("files", {})
    for key, entry in table.items():
        if entry.get("file", "tensors") not in recording["files"]:
            yield f"tensors.{key}.file: {entry['file']} is not among files"
        model_file = entry.get("model_file")
        if model_file is not None and model_file not in referred:
            yield f"tensors.{key}.model_file: {model_file} is not among model_files"
        if "payload_of" in entry:
            yield from shared_findings(f"tensors.{key}", entry, table)
    yield from version_findings(recording)
    yield from contract_findings(recording)
    yield from _name_findings(recording)
    seen: set[str] = set()
    for index, checkpoint in enumerate(recording["checkpoints"]):
        where = f"checkpoints[{index}] {checkpoint['id']}"
        if checkpoint["id"] in seen:
            yield f"{where}: id appears twice"
        seen.add(checkpoint["id"])
        expected = checkpoint_id(checkpoint["path"], checkpoint.get("function"), checkpoint["call"])
        if checkpoint["id"] != expected:
            yield f"{where}: id does not match path, function and call, which make {expected}"
        yield from inside_findings(where, checkpoint, recording["contracts"])
        for name, ref in checkpoint["inputs"].items():
            yield from _ref_findings(f"{where}: inputs.{name}", ref, table)
        for name, key in checkpoint["weights"].items():
            if key not in table:
                yield f"{where}: weights.{name}: tensor {key} is not in the table"
        for name, output in checkpoint["outputs"].items():
            yield from _output_findings(f"{where}: outputs.{name}", output, table)
        yield from trace_findings(where, checkpoint, recording)
        yield from bug_findings(where, checkpoint, table)
        yield from _block_findings(where, checkpoint)
    yield from chain_findings(recording["checkpoints"])


def _name_findings(recording: Mapping[str, Any]) -> Iterator[str]:
    """Weight names are unique, and the network knows them with the same dtype and shape."""
    network = {
        f"{module['path']}.{name}".removeprefix("."): parameter
        for module in recording["network"]
        for name, parameter in module["parameters"].items()
    }
    seen: dict[str, str] = {}
    for key, entry in recording["tensors"].items():
        name = entry.get("name")
        if name is None:
            continue
        if name in seen:
            yield f"tensors.{key}.name: {name} is also {seen[name]}'s"
        seen[name] = key
        if name in network:
            for field in ("dtype", "shape"):
                if network[name][field] != entry[field]:
                    yield (
                        f"tensors.{key}.{field}: {name} is {entry[field]}, in network it is "
                        f"{network[name][field]}"
                    )


def _ref_findings(where: str, ref: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[str]:
    if ref["tensor"] not in table:
        yield f"{where}: tensor {ref['tensor']} is not in the table"
        return
    shape, axes = table[ref["tensor"]]["shape"], ref["axes"]
    if len(axes) != len(shape):
        yield f"{where}: {len(axes)} axes {axes}, but {ref['tensor']} has shape {shape}"
    repeated = {axis for axis in axes if axis != "state" and axes.count(axis) > 1}
    if repeated:
        yield f"{where}: axis {min(repeated)} appears twice in {axes}"


def _output_findings(
    where: str, output: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[str]:
    found = list(_ref_findings(where, output, table))
    yield from found
    if found:
        return
    shape, delta = table[output["tensor"]]["shape"], output["delta"]
    if delta is None and as_number(output["error"]) != 0:
        yield f"{where}.error: {output['error']}, but delta is null (exactly zero)"
    for name in ("delta", "chained_delta"):
        key = output.get(name)
        if key is not None and key not in table:
            yield f"{where}.{name}: tensor {key} is not in the table"
        elif key is not None and (table[key]["dtype"], table[key]["shape"]) != ("f32", shape):
            entry = table[key]
            yield f"{where}.{name}: {entry['dtype']} {entry['shape']}, expected f32 {shape}"
    if "valid" in output:
        yield from _valid_findings(f"{where}.valid", output, table)
    if "rows" in output:
        yield from sampled_findings(where, output, table)
    yield from model_findings(where, output, table)
    yield from member_findings(where, output, table)


def _valid_findings(
    where: str, output: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[str]:
    valid = output["valid"]
    found = list(_ref_findings(where, valid, table))
    yield from found
    if found:
        return
    entry = table[valid["tensor"]]
    if entry["dtype"] != "bool":
        yield f"{where}: dtype is {entry['dtype']}, expected bool"
    sizes = dict(zip(output["axes"], table[output["tensor"]]["shape"], strict=True))
    for axis, size in zip(valid["axes"], entry["shape"], strict=True):
        if axis not in sizes:
            yield f"{where}: axis {axis} is not among the output's {output['axes']}"
        elif size not in (1, sizes[axis]):
            yield f"{where}: {axis} has size {size}, the output's has {sizes[axis]}"


def _block_findings(where: str, checkpoint: Mapping[str, Any]) -> Iterator[str]:
    """The names a block must have, against the table of blocks."""
    row = BLOCKS.get(checkpoint["block"])
    if row is None:
        return
    params = checkpoint["params"]
    yield from _set_findings(f"{where}: params", params, row.params)
    for name, keys in row.nested.items():
        if isinstance(params.get(name), dict):
            yield from _set_findings(f"{where}: params.{name}", params[name], keys)
    if row.weights is not None:
        weights = {re.sub(r"_list\.\d+\.", "_list.N.", w): w for w in checkpoint["weights"]}
        yield from _set_findings(f"{where}: weights", weights, row.weights)
    if "cos?" in row.inputs and params.get("attention", params).get("rotary", True):
        yield from _set_findings(f"{where}: inputs", checkpoint["inputs"], "cos sin", only=False)
    for field, expected in (("inputs", row.inputs), ("outputs", row.outputs)):
        yield from _set_findings(f"{where}: {field}", checkpoint[field], " ".join(expected))
        for name, axes in expected.items():
            ref = checkpoint[field].get(name.removesuffix("?"))
            if ref is not None and axes is not None and ref["axes"] != axes.split():
                yield f"{where}: {field}.{name}: axes {ref['axes']}, expected {axes.split()}"


def _set_findings(
    where: str, found: Mapping[str, Any], names: str, *, only: bool = True
) -> Iterator[str]:
    required, allowed = split_names(names)
    for name in sorted(required - found.keys()):
        yield f"{where}: {name} is missing"
    for name in sorted(found.keys() - allowed) if only else ():
        yield f"{where}: {name} is not one of this block's"


def _file_findings(folder: Path, recording: Mapping[str, Any]) -> Iterator[str]:
    """The safetensors files against the table, then the error figures of sound files."""
    files: dict[str, SafetensorsFile] = {}
    for name, entry in recording["files"].items():
        path = folder / entry["path"]
        try:
            if path.is_symlink():
                raise FormatError(f"{path} is a symbolic link; a recording's files must be regular")
            files[name] = read_header(path)
        except FormatError as error:
            yield f"{folder / RECORDING}: files.{name}.path: {error}"
            continue
        part = "header_sha256" if "header_sha256" in entry else "sha256"
        if files[name].size != entry["bytes"]:
            yield f"{path}: {files[name].size} bytes, files.{name}.bytes says {entry['bytes']}"
        elif (digest := _digest(files[name], part)) != entry[part]:
            yield f"{path}: SHA-256 is {digest}, files.{name}.{part} says {entry[part]}"
    if files.keys() != recording["files"].keys():
        return
    try:
        files = open_files(folder, recording)
    except FormatError as error:
        yield f"{folder / RECORDING}: {error}"
        return
    sound = True
    for finding in table_findings(folder / RECORDING, recording["tensors"], files):
        sound = False
        yield finding
    if sound:
        yield from _figure_findings(folder, recording, files)


def _digest(file: SafetensorsFile, part: str) -> str:
    return file.file_sha256() if part == "sha256" else file.header_sha256()


def _figure_findings(
    folder: Path, recording: Mapping[str, Any], files: Mapping[str, SafetensorsFile]
) -> Iterator[str]:
    def read(key: str) -> torch.Tensor:
        return read_tensor(files, recording["tensors"], key)

    stored = {key for key, entry in recording["tensors"].items() if "file" in entry}
    for checkpoint in recording["checkpoints"]:
        where = f"{folder / RECORDING}: {checkpoint['id']}"
        yield from bug_position_findings(where, checkpoint, recording["tensors"], read)
        for name, output in checkpoint["outputs"].items():
            if "rows" in output:
                where = f"{folder / RECORDING}: {checkpoint['id']}: outputs.{name}.rows"
                rows = output["rows"]
                yield from token_findings(where, read(rows["tensor"]), rows["of"])
            if output.get("model") is not None:
                where = f"{folder / RECORDING}: {checkpoint['id']}: outputs.{name}.model.at"
                shape = recording["tensors"][output["tensor"]]["shape"]
                yield from position_findings(where, read(output["model"]["at"]), shape)
            if output["delta"] is None or not {output["tensor"], output["delta"]} <= stored:
                continue
            valid = output.get("valid")
            error = reference_error(
                read(output["tensor"]),
                read(output["delta"]),
                None if valid is None else broadcast_valid(read(valid["tensor"]), valid, output),
            )
            said = as_number(output["error"])
            same = math.isclose(error, said, rel_tol=ERROR_TOLERANCE)
            if not same and not (math.isnan(error) and math.isnan(said)):
                yield (
                    f"{folder / RECORDING}: {checkpoint['id']}: outputs.{name}.error: {said:.9g}, "
                    f"recomputed {error:.9g}"
                )


def broadcast_valid(
    mask: torch.Tensor, valid: Mapping[str, Any], output: Mapping[str, Any]
) -> torch.Tensor:
    """The mask with one dimension per axis of the output, of size 1 where it has none."""
    axes = list(valid["axes"])
    order = [axes.index(axis) for axis in output["axes"] if axis in axes]
    mask = mask.permute(order)
    for position, axis in enumerate(output["axes"]):
        if axis not in axes:
            mask = mask.unsqueeze(position)
    return mask


def reference_error(
    reference: torch.Tensor, delta: torch.Tensor, valid: torch.Tensor | None
) -> float:
    """sqrt(sum delta^2 / sum o^2) with o = r + delta, over valid elements whose r is finite; inf
    where one is not, and is not what o is."""
    r, d = reference.double(), delta.double()
    counted = torch.isfinite(r)
    lost = ~counted & (d != 0)
    if valid is not None:
        counted &= valid
        lost &= valid
    if bool(lost.any()):
        return math.inf
    o = (r + d)[counted]
    d = d[counted]
    below = float(o.square().sum())
    above = float(d.square().sum())
    if above == 0:
        return 0.0
    return math.sqrt(above / below) if below else math.inf


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
