"""Recordings from somewhere else: fetched once per node, and checked by hash.

The cache of a node holds each file once, under its SHA-256 (`objects`), and beside them folders in
which the recordings of a sweep stand under their own names (`views`, hard links).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import unquote, urljoin, urlsplit

HEADER = "recording.json"
PLAIN = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]{1,255}")  # a file name, as recordings may name one
ATTEMPTS = 3
SECONDS = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """A file, where it is and where it shall stand below a view."""

    uri: str
    sha256: str
    path: str


@dataclass(frozen=True)
class RemoteRecording:
    """All files of one recording."""

    name: str
    files: tuple[RemoteFile, ...]


def recordings_at(uri: str) -> list[RemoteRecording]:
    """The recording at a URI (its folder or recording.json); of a local folder all below it.

    A path and file:// have to be there on every node, http:// and https:// need not. ValueError
    with what is wrong.
    """
    kind = urlsplit(uri).scheme
    if kind in ("http", "https"):
        return [_described(uri if uri.endswith(HEADER) else f"{uri.rstrip('/')}/{HEADER}")]
    root = _local(uri).absolute()
    headers = [root] if root.name == HEADER else sorted(root.rglob(HEADER))
    if not headers:
        raise ValueError(f"{uri}: there is no {HEADER} below it")
    return [_described(str(header)) for header in headers]


def fetched(recordings: Sequence[RemoteRecording], cache: Path) -> Path:
    """A folder with the recordings under their names; what the cache has is not fetched again."""
    objects, views = cache / "objects", cache / "views"
    for folder in (objects, views):
        folder.mkdir(parents=True, exist_ok=True)
    files = sorted(
        {file.path: file for recording in recordings for file in recording.files}.items()
    )
    digest = hashlib.sha256(json.dumps([(path, f.sha256) for path, f in files]).encode())
    view = views / digest.hexdigest()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one task of a node fetches, the others find it done
        if view.is_dir():
            return view
        building = Path(tempfile.mkdtemp(dir=views))
        try:
            for path, file in files:
                stored = objects / file.sha256
                if not stored.is_file():
                    _fetch(file, stored)
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
    for file in (file for recording in recordings for file in recording.files):
        other = known.setdefault(file.path, file)
        if other.sha256 != file.sha256:
            raise ValueError(f"{file.uri} and {other.uri} are both {file.path} and differ")
    return sorted({r.name: r for r in recordings}.values(), key=lambda recording: recording.name)


def _described(header_uri: str) -> RemoteRecording:
    """What recording.json says of itself and its files."""
    with _opened(header_uri) as stream:
        text = stream.read()
    try:
        header: dict[str, Any] = json.loads(text)
        name = header["name"]
        listed = [(file["path"], file["sha256"]) for file in header["files"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{header_uri}: is no recording: {error!r}") from error
    parts = str(name).split("/")
    if len(parts) != 2 or not all(PLAIN.fullmatch(part) for part in parts):
        raise ValueError(f"{header_uri}: its name {name!r} is not MODEL/CASE")
    files = [RemoteFile(header_uri, hashlib.sha256(text).hexdigest(), f"{name}/{HEADER}")]
    for path, digest in listed:
        plain = PLAIN.fullmatch(path.removeprefix("../"))
        if not plain or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"{header_uri}: names the file {path!r} with the hash {digest!r}")
        files.append(
            RemoteFile(_beside(header_uri, path), digest, os.path.normpath(f"{name}/{path}"))
        )
    return RemoteRecording(name, tuple(files))


def _beside(header_uri: str, path: str) -> str:
    if urlsplit(header_uri).scheme in ("http", "https"):
        return urljoin(header_uri, path)
    return os.path.normpath(_local(header_uri).parent / path)


def _local(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if re.match(r"[a-z][a-z0-9+.-]*://", uri):
        raise ValueError(f"{uri}: recordings are at a path, file://, http:// or https://")
    return Path(uri)


@contextmanager
def _opened(uri: str) -> Iterator[IO[bytes]]:
    """OSError names the URI."""
    try:
        if urlsplit(uri).scheme in ("http", "https"):
            with urllib.request.urlopen(uri, timeout=SECONDS) as stream:
                yield stream
        else:
            with _local(uri).open("rb") as stream:
                yield stream
    except URLError as error:
        raise OSError(f"{uri}: {error}") from error


def _fetch(file: RemoteFile, stored: Path) -> None:
    """Into the cache, whole or not at all; a broken connection is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.NamedTemporaryFile(dir=stored.parent, delete=False) as partial:
            try:
                with _opened(file.uri) as stream:
                    shutil.copyfileobj(stream, partial, 1 << 20)
                partial.flush()
                _check(file, Path(partial.name))
                os.fsync(partial.fileno())
                Path(partial.name).replace(stored)
                return
            except OSError:
                if attempt == ATTEMPTS:
                    raise
            finally:
                Path(partial.name).unlink(missing_ok=True)


def _check(file: RemoteFile, partial: Path) -> None:
    with partial.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"{file.uri}: has the SHA-256 {found}, its recording says {file.sha256}: it was "
            "changed, or is not the recording's; upload the recording again"
        )
