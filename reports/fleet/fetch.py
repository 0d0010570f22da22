"""Recordings from somewhere else: fetched once per node, and checked by hash.

The cache of a node holds each file once, under its SHA-256 (`objects`), of large files the tensors
that were needed (`partial`), and folders with the recordings of a sweep under their own names
(`views`, hard links).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from .layers import needed
from .partial import TensorFile, fetch_tensors
from .ranges import ATTEMPTS, is_remote, local, opened

HEADER = "recording.json"
PLAIN = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]{1,255}")  # a file name, as recordings may name one
SHA256 = re.compile("[0-9a-f]{64}")
WEIGHTS = ".weights"  # of a view: the files of the model's own folder that recordings refer to


@dataclass(frozen=True)
class RemoteFile:
    """A file, where it is and its path below a view."""

    uri: str
    sha256: str
    path: str


@dataclass(frozen=True)
class RemoteRecording:
    """All files of one recording."""

    name: str
    header: RemoteFile
    files: tuple[TensorFile, ...]


@dataclass(frozen=True)
class Part:
    """Of each recording, what `harness --shard index/count --shard-by layers` reads."""

    index: int
    count: int
    chains: bool = False  # whether whole models run, too


def recordings_at(uri: str, weights: str = "") -> list[RemoteRecording]:
    """The recording at a URI (its folder or recording.json); of a local folder all below it.

    A path and file:// have to be there on every node, http:// and https:// need not. `weights`:
    where the model's own files are, if recordings refer to them; else where the recording says.
    ValueError with what is wrong.
    """
    if is_remote(uri):
        whole = uri if uri.endswith(HEADER) else f"{uri.rstrip('/')}/{HEADER}"
        return [_described(whole, weights)]
    root = local(uri).absolute()
    headers = [root] if root.name == HEADER else sorted(root.rglob(HEADER))
    if not headers:
        raise ValueError(f"{uri}: there is no {HEADER} below it")
    return [_described(str(header), weights) for header in headers]


def fetched(recordings: Sequence[RemoteRecording], cache: Path, part: Part | None = None) -> Path:
    """A folder with the recordings under their names; what the cache has is not fetched again.

    With a part: with the tensors that it needs, and holes where others are.
    """
    objects, partial, views = cache / "objects", cache / "partial", cache / "views"
    for folder in (objects, partial, views):
        folder.mkdir(parents=True, exist_ok=True)
    placed: dict[str, Path] = {}  # by path below the view
    wanted: dict[str, set[str]] = {}
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one task of a node fetches, the others find it done
        for recording in recordings:
            placed[recording.header.path] = header = _object(recording.header, objects)
            for path, names in _wanted(header, part).items() if part else ():
                wanted.setdefault(path, set()).update(names)
        for file in _files(recordings).values():
            if file.sha256 and (part is None or (objects / file.sha256).is_file()):
                whole = RemoteFile(file.uri, file.sha256, file.path)
                placed[file.path] = _object(whole, objects)
            else:
                names = wanted.get(file.path, set()) if part else set(file.tensors)
                placed[file.path] = _tensors_of(file, names, partial)
        return _view(placed, views)


def _tensors_of(file: TensorFile, names: set[str], partial: Path) -> Path:
    try:
        return fetch_tensors(file, names, partial)
    except OSError as error:
        if not file.path.startswith(f"{WEIGHTS}/"):
            raise
        raise OSError(
            f"{error}: the recording refers to the model's own files; say where they are with "
            "--weights URI"
        ) from error


def _files(recordings: Sequence[RemoteRecording]) -> dict[str, TensorFile]:
    """By path: several recordings of a model may share its weights. ValueError if they differ."""
    files: dict[str, TensorFile] = {}
    for file in (file for recording in recordings for file in recording.files):
        known = files.get(file.path)
        files[file.path] = known.joined(file) if known else file
    return files


def _view(placed: Mapping[str, Path], views: Path) -> Path:
    """A folder with the files under their paths."""
    listed = sorted((path, stored.parent.name, stored.name) for path, stored in placed.items())
    view = views / hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    if view.is_dir():
        return view
    building = Path(tempfile.mkdtemp(dir=views))
    try:
        for path, stored in placed.items():
            place = building / path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(stored, place)
        building.rename(view)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return view


def distinct(recordings: Sequence[RemoteRecording]) -> list[RemoteRecording]:
    """Sorted by name; ValueError where two of one name differ."""
    known: dict[str, RemoteFile] = {}
    for header in (recording.header for recording in recordings):
        other = known.setdefault(header.path, header)
        if other.sha256 != header.sha256:
            raise ValueError(f"{header.uri} and {other.uri} are both {header.path} and differ")
    _files(recordings)
    return sorted({r.name: r for r in recordings}.values(), key=lambda recording: recording.name)


def _described(header_uri: str, weights: str) -> RemoteRecording:
    """What recording.json says of itself and its files."""
    with opened(header_uri) as stream:
        text = stream.read()
    try:
        header: dict[str, Any] = json.loads(text)
        name = header["name"]
        found = [*_own_files(header, header_uri), *_model_files(header, weights)]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{header_uri}: is no recording: {error!r}") from error
    parts = str(name).split("/")
    if len(parts) != 2 or not all(PLAIN.fullmatch(part) for part in parts):
        raise ValueError(f"{header_uri}: its name {name!r} is not MODEL/CASE")
    itself = RemoteFile(header_uri, hashlib.sha256(text).hexdigest(), f"{name}/{HEADER}")
    return RemoteRecording(name, itself, tuple(found))


def _own_files(header: dict[str, Any], header_uri: str) -> list[TensorFile]:
    found = []
    for kind, file in header["files"].items():
        path, digest = file["path"], file.get("sha256", "")
        start = file.get("header_sha256", "")
        plain = PLAIN.fullmatch(path.removeprefix("../"))
        if not plain or not SHA256.fullmatch(digest or start):
            raise ValueError(f"{header_uri}: names the file {path!r} with the hash {digest!r}")
        place = os.path.normpath(f"{header['name']}/{path}")
        tensors = _tensors(header, "file", kind)
        size = int(file["bytes"])
        uri = _beside(header_uri, path)
        found.append(TensorFile(uri, place, size, digest, start, tensors))
    return found


def _model_files(header: dict[str, Any], weights: str) -> list[TensorFile]:
    """Of the folder that the model was loaded from, which `weights` is a copy of."""
    if not (model := header.get("model_files")):
        return []
    folder = (weights or model["folder"]).rstrip("/")
    found = []
    for name, file in model["files"].items():
        if not PLAIN.fullmatch(name):
            raise ValueError(f"{folder}: names the file {name!r}")
        uri = f"{folder}/{quote(name) if is_remote(folder) else name}"
        tensors = _tensors(header, "model_file", name)
        size = int(file["bytes"])
        found.append(TensorFile(uri, f"{WEIGHTS}/{name}", size, "", "", tensors))
    return found


def _tensors(header: dict[str, Any], member: str, file: str) -> dict[str, str]:
    """The SHA-256 of the file's tensors, by the name inside."""
    return {
        _name_inside(key, tensor): tensor["sha256"]
        for key, tensor in header["tensors"].items()
        if tensor.get(member) == file
    }


def _name_inside(key: str, tensor: Mapping[str, Any]) -> str:
    """What its payload is called in the file, which may be another tensor's in another shape."""
    return str(tensor.get("name") or tensor.get("payload_of") or key)


def _wanted(stored: Path, part: Part) -> dict[str, set[str]]:
    """The tensors that the part needs of each file, by the file's path below a view."""
    header = json.loads(stored.read_bytes())
    keys = needed(header, part.index, part.count, part.chains)
    wanted: dict[str, set[str]] = {}
    for key in keys:
        tensor = header["tensors"][key]
        if "model_file" in tensor:
            path = f"{WEIGHTS}/{tensor['model_file']}"
        elif "file" in tensor:
            path = os.path.normpath(f"{header['name']}/{header['files'][tensor['file']]['path']}")
        else:
            continue  # generated
        wanted.setdefault(path, set()).add(_name_inside(key, tensor))
    return wanted


def _beside(header_uri: str, path: str) -> str:
    if is_remote(header_uri):
        return urljoin(header_uri, path)
    return os.path.normpath(local(header_uri).parent / path)


def _object(file: RemoteFile, objects: Path) -> Path:
    """In the cache, whole or not at all; a broken connection is tried again."""
    stored = objects / file.sha256
    if stored.is_file():
        return stored
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.NamedTemporaryFile(dir=objects, delete=False) as partial:
            try:
                with opened(file.uri) as stream:
                    shutil.copyfileobj(stream, partial, 1 << 20)
                partial.flush()
                _check(file, Path(partial.name))
                os.fsync(partial.fileno())
                Path(partial.name).replace(stored)
                break
            except OSError:
                if attempt == ATTEMPTS:
                    raise
            finally:
                Path(partial.name).unlink(missing_ok=True)
    return stored


def _check(file: RemoteFile, partial: Path) -> None:
    with partial.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"{file.uri}: has the SHA-256 {found}, its recording says {file.sha256}: it was "
            "changed, or is not the recording's; upload the recording again"
        )
