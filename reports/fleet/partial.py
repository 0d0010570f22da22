"""Files of tensors of which a node has a part: as large as the whole, with holes.

A second file lists the tensors that are there. Each was checked by its SHA-256 before it was
listed, so a node that died while it fetched continues with what it had.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from .ranges import PIECE, copy_range

GAP = 64 << 10  # bytes that are fetched along rather than asked around
GUESS = 1 << 20  # bytes of a header that are fetched at once
MOST_GROUP = 256 << 20
MOST_HEADER = 100_000_000  # as safetensors has it


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file, where it is and its path below a view."""

    uri: str
    path: str
    bytes: int
    sha256: str  # "": of what is in it only the tensors are known, and maybe the header
    header_sha256: str
    tensors: Mapping[str, str]  # SHA-256 by the name inside

    @property
    def key(self) -> str:
        """The same for the same content: its name in a node's cache."""
        known = [self.bytes, self.header_sha256, sorted(self.tensors.items())]
        return self.sha256 or hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def joined(self, other: TensorFile) -> TensorFile:
        """With the tensors that another recording lists. ValueError where they are not the same."""
        mine, its = (replace(file, uri="", tensors={}) for file in (self, other))
        common = self.tensors.keys() & other.tensors.keys()
        if mine != its or any(self.tensors[name] != other.tensors[name] for name in common):
            raise ValueError(f"{other.uri} and {self.uri} are both {self.path} and differ")
        return replace(self, tensors={**self.tensors, **other.tensors})


def fetch_tensors(file: TensorFile, names: set[str], folder: Path) -> Path:
    """The file in the folder, with these tensors in it; what is there is not fetched again."""
    stored, listed = folder / file.key, folder / f"{file.key}.have"
    with _locked(folder / f"{file.key}.lock"):
        if not stored.exists():
            listed.unlink(missing_ok=True)
        missing = names - _listed(listed)
        if not missing and stored.exists():
            return stored
        with stored.open("r+b" if stored.exists() else "w+b") as out, listed.open("a") as have:
            out.truncate(file.bytes)
            places = _places(file, out)
            for group in _groups(places, missing):
                _fetch(file, group, places, out)
                os.fsync(out.fileno())
                have.write("".join(json.dumps(name) + "\n" for name in group))
                have.flush()
    return stored


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _listed(path: Path) -> set[str]:
    """The tensors that are there; a line that was being written is dropped."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return {json.loads(line) for line in whole.splitlines()}


Places = dict[str, tuple[int, int]]  # begin and end of a tensor in the file


def _places(file: TensorFile, out: BinaryIO) -> Places:
    """Where the tensors are, by the file's header, which is fetched once."""
    length = int.from_bytes(_read(out, 0, 8), "little")
    if not length:  # a hole
        guess = min(GUESS, file.bytes)
        copy_range(file.uri, 0, guess, file.bytes, out)
        length = int.from_bytes(_read(out, 0, 8), "little")
        if not 0 < length <= min(MOST_HEADER, file.bytes - 8):
            raise ValueError(f"{file.uri}: is no safetensors file: its header has {length} bytes")
        if 8 + length > guess:
            copy_range(file.uri, guess, 8 + length, file.bytes, out)
    text = _read(out, 0, 8 + length)
    if file.header_sha256 and (found := hashlib.sha256(text).hexdigest()) != file.header_sha256:
        _hole(out, 0)
        raise ValueError(_changed(file, "its header", found, file.header_sha256))
    try:
        entries: dict[str, Any] = json.loads(text[8:])
        offsets = {
            name: tuple(8 + length + int(at) for at in entry["data_offsets"])
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _hole(out, 0)
        raise ValueError(f"{file.uri}: is no safetensors file: {error!r}") from error
    places: Places = {}
    for name in file.tensors:
        begin, end = offsets.get(name, (0, -1))
        if not 8 + length <= begin <= end <= file.bytes:
            raise ValueError(f"{file.uri}: holds no tensor {name}, which its recording lists")
        places[name] = begin, end
    return places


def _read(out: BinaryIO, begin: int, end: int) -> bytes:
    out.seek(begin)
    return out.read(end - begin)


def _hole(out: BinaryIO, at: int) -> None:
    """So that a header that was refused is fetched again."""
    out.seek(at)
    out.write(bytes(8))
    out.flush()


def _changed(file: TensorFile, what: str, found: str, expected: str) -> str:
    return (
        f"{file.uri}: {what} has the SHA-256 {found}, its recording says {expected}: it was "
        "changed, or is not the recording's; upload the recording again"
    )


def _groups(places: Places, names: set[str]) -> Iterator[list[str]]:
    """Tensors that one request fetches: neighbours, up to MOST_GROUP bytes."""
    group: list[str] = []
    for name in sorted(names, key=lambda each: places[each]):
        begin, end = places[name]
        if group:
            far = begin - places[group[-1]][1] > GAP
            if far or end - places[group[0]][0] > MOST_GROUP:
                yield group
                group = []
        group.append(name)
    if group:
        yield group


def _fetch(file: TensorFile, group: list[str], places: Places, out: BinaryIO) -> None:
    begin, end = places[group[0]][0], max(places[name][1] for name in group)
    if begin < end:
        copy_range(file.uri, begin, end, file.bytes, out)
    out.flush()
    for name in group:
        digest = hashlib.sha256()
        out.seek(places[name][0])
        left = places[name][1] - places[name][0]
        while left and (piece := out.read(min(PIECE, left))):
            digest.update(piece)
            left -= len(piece)
        if digest.hexdigest() != file.tensors[name]:
            what = f"the tensor {name}"
            raise ValueError(_changed(file, what, digest.hexdigest(), file.tensors[name]))
