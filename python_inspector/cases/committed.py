"""The committed recordings: all of them, how they are made again, and compared with a new run."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError
from ..format.folders import replace_folder
from ..format.show import format_bytes
from ..format.strict_json import load_json
from ..format.validate import RECORDING, find_recordings, validate
from ..recorder.where import Where
from . import border_cases
from .border_cases import BORDER_CASES, BorderCase
from .case import Case
from .model_cases import MODEL_CASES

CASE_LIMIT = 2_500_000
TOTAL_LIMIT = 45_000_000
"""Bytes of one recording, and of all with their weights: the folder travels with the repository."""

CASES: tuple[Case | BorderCase, ...] = (
    *(case for case in MODEL_CASES if case.committed),
    *BORDER_CASES,
)


def select(only: str | None) -> list[Case | BorderCase]:
    """The cases whose name matches the regular expression; FormatError if there is none."""
    found = [case for case in CASES if only is None or re.search(only, case.name)]
    if not found:
        raise FormatError(f"no case matches {only!r}; inspector fixtures --list shows all")
    return found


def generate(out: Path, only: str | None = None) -> None:
    """Records the cases again and puts them under `out`; one that gave the same bits stays.

    Raises FormatError where a recording is invalid or too large, or where weights that recordings
    outside the selection share have changed; then `out` is as it was.
    """
    cases = select(only)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fixtures-", dir=out) as scratch:
        made = Path(scratch)
        for case in cases:
            _record(case, made)
            limit = border_cases.LIMIT if isinstance(case, BorderCase) else CASE_LIMIT
            _check_size(case.name, _folder_bytes(made / case.name), limit)
        _check_weights(out, made, cases)
        for case in cases:
            _install(case, made, out)
        for weights in made.glob("*/weights-*.safetensors"):
            weights.replace(out / weights.relative_to(made))
    _check_size("all recordings", _tree_bytes(out), TOTAL_LIMIT)


def check(out: Path, only: str | None = None) -> int:
    """Records the cases again and compares bit for bit with those under `out`: how many differ.

    The same bits are to be expected from the same torch build on the same kind of processor only.
    """
    differing = 0
    with tempfile.TemporaryDirectory(prefix="plumbline-fixtures-") as scratch:
        for case in select(only):
            _record(case, Path(scratch), quiet=True)
            text = _difference(out / case.name, Path(scratch) / case.name)
            differing += text is not None
            print(f"{case.name:36} {text or 'same'}")
    return differing


def _record(case: Case | BorderCase, out: Path, *, quiet: bool = False) -> None:
    folder = out / case.name
    command = f"inspector fixtures --only '^{case.name}$'"
    with _one_thread():
        summary = case.record(Where(folder, case.name, command=command, created=_created()))
    if findings := validate(folder):
        raise FormatError(f"{case.name} is invalid: {findings[0]} (of {len(findings)})")
    if not quiet:
        size = summary.json_bytes + summary.tensor_bytes
        print(
            f"{case.name:36} {summary.checkpoints:4} checkpoints {format_bytes(size):>8} "
            f"(JSON {format_bytes(summary.json_bytes)})"
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums of a matrix product can depend on how many threads share it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _created() -> str | None:
    """The time of SOURCE_DATE_EPOCH (reproducible-builds.org), or None for now."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return None
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_weights(out: Path, made: Path, cases: list[Case | BorderCase]) -> None:
    """New weights may replace old ones only if every recording that shares them is made again."""
    names = {case.name for case in cases}
    for new in made.glob("*/weights-*.safetensors"):
        old = out / new.relative_to(made)
        if not old.exists() or old.read_bytes() == new.read_bytes():
            continue
        for recording in find_recordings(old.parent):
            name = f"{old.parent.name}/{recording.name}"
            weights = load_json(recording / RECORDING)["files"].get("weights", {})
            if name not in names and weights.get("path") == f"../{old.name}":
                raise FormatError(
                    f"{old} changes, and {name} shares it but was not selected; make all "
                    f"recordings of {old.parent.name} together"
                )


def _install(case: Case | BorderCase, made: Path, out: Path) -> None:
    old, new = out / case.name, made / case.name
    if old.exists() and _difference(old, new) is None:
        return
    old.parent.mkdir(parents=True, exist_ok=True)
    replace_folder(new, old)


def _difference(old: Path, new: Path) -> str | None:
    """What differs between two recordings, apart from when and on which machine they were made."""
    if not (old / RECORDING).is_file():
        return f"{old} is missing"
    first, second = (_comparable(folder) for folder in (old, new))
    for key in first.keys() | second.keys():
        if first.get(key) != second.get(key) and key != "checkpoints":
            return f"{key} differs"
    pairs = list(zip(first["checkpoints"], second["checkpoints"], strict=False))
    changed = [a["id"] for a, b in pairs if a != b]
    if changed or len(first["checkpoints"]) != len(second["checkpoints"]):
        counts = f"{len(first['checkpoints'])} checkpoints, now {len(second['checkpoints'])}"
        return f"{counts}, {len(changed)} differ, the first {changed[0] if changed else 'none'}"
    return None


def _comparable(folder: Path) -> dict[str, Any]:
    """The recording with tensor keys replaced by hashes, without date and machine."""
    recording = load_json(folder / RECORDING)
    for name in ("created", "producer"):
        del recording["provenance"][name]
    hashes = {key: entry["sha256"] for key, entry in recording.pop("tensors").items()}
    del recording["files"]
    text = re.sub(r'"([tw]\d+)"', lambda m: f'"{hashes.get(m[1], m[1])}"', json.dumps(recording))
    result: dict[str, Any] = json.loads(text)
    return result


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise FormatError(f"{what} take {size} bytes, the limit is {limit}")


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _tree_bytes(out: Path) -> int:
    """Recordings and weights below `out`."""
    folders = find_recordings(out)
    weights = {path for f in folders for path in f.parent.glob("weights-*.safetensors")}
    return sum(map(_folder_bytes, folders)) + sum(path.stat().st_size for path in weights)
