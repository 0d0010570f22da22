"""`inspector show`: a recording as text for people."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .contract_words import INSIDE, in_order
from .recording import as_number
from .strict_json import load_json
from .validate import RECORDING, schema_findings

Json = Mapping[str, Any]


def show(folder: Path, checkpoint: str | None = None) -> str:
    """A summary, or with a regular expression the checkpoints whose ids it matches, in detail.

    Raises FormatError for a file that is no recording and re.error for a bad expression.
    """
    path = folder / RECORDING
    recording = load_json(path)
    for finding in schema_findings(recording):
        raise FormatError(f"{path}: {finding}")
    try:
        return _shown(folder, recording, checkpoint)
    except (KeyError, ValueError) as error:  # what the schema cannot say
        raise FormatError(f"{path}: {error} does not fit: inspector validate says more") from None


def _shown(folder: Path, recording: Json, checkpoint: str | None) -> str:
    if checkpoint is None:
        return "\n".join(_summary(folder, recording))
    pattern = re.compile(checkpoint)
    found = [c for c in recording["checkpoints"] if pattern.search(c["id"])]
    if not found:
        return f"no checkpoint of {recording['name']} matches {checkpoint!r}"
    return "\n\n".join("\n".join(_detail(recording, c)) for c in found)


def _summary(folder: Path, recording: Json) -> Iterator[str]:
    provenance = recording["provenance"]
    model, run, producer = provenance["model"], provenance["run"], provenance["producer"]
    yield recording["name"]
    yield f"  model     {model['source']}, {provenance['architecture']} ({_origin(model)})"
    yield f"  run       {_run(run)}"
    yield f"  dtype     {provenance['dtype']}, attention {provenance['attention']}"
    versions = ", ".join(
        f"{name} {producer[name]}" for name in ("transformers", "torch", "python_inspector")
    )
    yield f"  recorded  {provenance['created']} with {versions}"
    yield f"  command   {provenance['command']}"
    yield from _inside(recording)
    for name, value in provenance["notes"].items():
        yield f"  note      {name}: {value}"
    for text in provenance["warnings"]:
        yield f"  warning   {text}"
    yield ""
    yield from _blocks(recording["checkpoints"])
    yield ""
    size = (folder / RECORDING).stat().st_size
    yield f"  {RECORDING:24} {format_bytes(size):>9}"
    for entry in recording["files"].values():
        yield f"  {entry['path']:24} {format_bytes(entry['bytes']):>9}"
    referred = recording.get("model_files", {"files": {}})
    for name, entry in referred["files"].items():
        where = f"referred to, in {referred['folder']}"
        yield f"  {name:24} {format_bytes(entry['bytes']):>9}  {where}"


def _blocks(checkpoints: list[Json]) -> Iterator[str]:
    """A line per kind of block: how many, the largest error of the reference and where."""
    groups: dict[str, list[Json]] = defaultdict(list)
    for checkpoint in checkpoints:
        groups[checkpoint["block"]].append(checkpoint)
    yield f"  {'block':20} {'checkpoints':>11}  worst reference error"
    for block, members in groups.items():
        worst, place = max(
            (
                (as_number(output["error"]), f"{member['id']} {name}")
                for member in members
                for name, output in member["outputs"].items()
            ),
            key=lambda item: item[0],
        )
        yield f"  {block:20} {len(members):11}  {worst:.2e}  {place if worst else ''}".rstrip()
    yield f"  {'in all':20} {len(checkpoints):11}"


def _inside(recording: Json) -> Iterator[str]:
    """What contracts allow inside, and how many checkpoints state it."""
    contracts, checkpoints = recording["contracts"], recording["checkpoints"]
    for word in in_order(word for it in contracts.values() for word in it.get("inside", ())):
        count = sum(word in contracts[c["contract"]].get("inside", ()) for c in checkpoints)
        yield f"  contract  {word} in {count} of {len(checkpoints)} checkpoints: {INSIDE[word]}"


def _detail(recording: Json, checkpoint: Json) -> Iterator[str]:
    table = recording["tensors"]
    contract = recording["contracts"][checkpoint["contract"]]
    yield f"{checkpoint['id']}  ({checkpoint['block']}, step {checkpoint['step']})"
    yield (
        f"  contract {checkpoint['contract']}: storage {contract['storage']}, multiply "
        f"{contract['multiply']}, accumulator {contract['accumulator']['bits']} bits, "
        f"points {contract['points']}"
    )
    for word in contract.get("inside", ()):
        yield f"  inside   {word}: {INSIDE[word]}"
    for name, value in checkpoint["params"].items():
        yield f"  param   {name} = {value}"
    for name, ref in checkpoint["inputs"].items():
        yield f"  input   {name:16} {_tensor(table, ref)}"
    for name, key in checkpoint["weights"].items():
        entry = table[key]
        yield f"  weight  {name:16} {entry['dtype']} {entry['shape']}  {entry.get('name', key)}"
    for name, output in checkpoint["outputs"].items():
        error = as_number(output["error"])
        yield f"  output  {name:16} {_tensor(table, output)}  error {error:.3e}"
        if "rows" in output:
            rows = output["rows"]
            yield f"          rows             {table[rows['tensor']]['shape'][0]} of {rows['of']}"
        if "valid" in output:
            yield f"          valid            {_tensor(table, output['valid'])}"
        yield from _simulated(table, output)


def _simulated(table: Json, output: Json) -> Iterator[str]:
    """What simulated kernels show of an output."""
    if "model" in output:
        model = output["model"]
        count = 0 if model is None else table[model["at"]]["shape"][0]
        yield f"          rounded model    other bits than the reference in {count} elements"
    for field in ("spread", "truncated"):
        for name, figures in output.get(field, {}).items():
            if name != "runs":
                mean, deviation, largest = map(as_number, figures)
                figure = f"{mean:.3g} +- {deviation:.2g}, at most {largest:.3g}"
                yield f"          {field:10} {name:12} {figure}"
    if "unstable" in output:
        yield f"          unstable         by {as_number(output['unstable']):.2e} when run again"


def _tensor(table: Json, ref: Json) -> str:
    entry = table[ref["tensor"]]
    sizes = ", ".join(f"{a} {n}" for a, n in zip(ref["axes"], entry["shape"], strict=True))
    return f"{ref['tensor']:5} {entry['dtype']} [{sizes}]"


def _origin(model: Json) -> str:
    if model["revision"] is not None:
        return f"revision {model['revision']}"
    return "no revision" if model["seed"] is None else f"seed {model['seed']}"


def _run(run: Json) -> str:
    text = f"{run['mode']}, batch {run['batch']}, {run['tokens']} tokens, {run['steps']} steps"
    for name in ("chunks", "left_pad", "cache"):
        if run[name] is not None:
            text += f", {name} {run[name]}"
    return text


def format_bytes(size: float) -> str:
    """1234567 as `1.23 MB`."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} GB"
