"""Bytes of a file from a path or a server: all of it, or a range (HTTP's Range, RFC 9110)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

ATTEMPTS = 3
SECONDS = 60.0
PIECE = 1 << 20


def is_remote(uri: str) -> bool:
    """Whether a server has it."""
    return urlsplit(uri).scheme in ("http", "https")


def local(uri: str) -> Path:
    """The path of a file here. ValueError for what is neither here nor on a server."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if re.match(r"[a-z][a-z0-9+.-]*://", uri):
        raise ValueError(f"{uri}: recordings are at a path, file://, http:// or https://")
    return Path(uri)


@contextmanager
def opened(uri: str) -> Iterator[IO[bytes]]:
    """All of it. OSError names the URI."""
    try:
        if is_remote(uri):
            with urllib.request.urlopen(uri, timeout=SECONDS) as stream:
                yield stream
        else:
            with local(uri).open("rb") as stream:
                yield stream
    except (URLError, HTTPException) as error:
        raise OSError(f"{uri}: {error}") from error


def copy_range(uri: str, begin: int, end: int, size: int, out: BinaryIO) -> None:
    """Writes bytes begin to end, less one, of a file of `size` bytes where they are in `out`.

    What broke off is tried again from there. OSError for what cannot be had, ValueError for a file
    of another size and for a server that has no ranges.
    """
    at, error = begin, OSError("nothing came")
    for _ in range(ATTEMPTS):
        try:
            with _opened_at(uri, at, end, size) as stream:
                out.seek(at)
                while at < end and (piece := stream.read(min(PIECE, end - at))):
                    out.write(piece)
                    at += len(piece)
        except OSError as problem:
            error = problem
        except HTTPException as problem:
            error = OSError(repr(problem))
        if at == end:
            return
    if at > begin:
        error = OSError(f"only {at - begin} came")
    raise OSError(f"{uri}: {end - begin} bytes at {begin}: {error} in {ATTEMPTS} attempts")


@contextmanager
def _opened_at(uri: str, begin: int, end: int, size: int) -> Iterator[IO[bytes]]:
    if not is_remote(uri):
        with local(uri).open("rb") as stream:
            _check_size(uri, stream.seek(0, 2), size)
            stream.seek(begin)
            yield stream
        return
    asked = urllib.request.Request(uri, headers={"Range": f"bytes={begin}-{end - 1}"})
    try:
        with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
            _check_range(uri, answer.status, answer.headers.get("Content-Range", ""), begin, size)
            yield answer
    except HTTPError as error:
        if error.code == 416:
            raise ValueError(f"{uri}: is shorter than the {size} bytes of its recording") from error
        raise


def _check_range(uri: str, status: int, given: str, begin: int, size: int) -> None:
    if status != 206:
        raise ValueError(
            f"{uri}: its server has no range requests (it answers {status}, not 206): shards by "
            "layers need them; nginx, Caddy, S3 and Hugging Face have them, python -m http.server "
            "has not"
        )
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", given)
    if not found or int(found[1]) != begin:
        raise ValueError(f"{uri}: was asked for bytes from {begin}, gave Content-Range {given!r}")
    if found[2] != "*":
        _check_size(uri, int(found[2]), size)


def _check_size(uri: str, found: int, size: int) -> None:
    if found != size:
        raise ValueError(
            f"{uri}: has {found} bytes, its recording says {size}: it was changed, or is not the "
            "recording's; upload the recording again"
        )
