"""Writes to one file by several threads: ordinary bytes, and a full disk is an error, no signal."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from python_inspector.format import mapped_writes
from python_inspector.format.mapped_writes import write_mapped

PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield number
    os.close(number)


def content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


@pytest.mark.parametrize("offset", [0, 8, PAGE - 1, PAGE, 3 * PAGE + 5])
@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, 5 * PAGE + 3])
def test_what_is_written_is_there_and_nothing_else_changes(
    offset: int, size: int, file: int
) -> None:
    before = os.urandom(4 * PAGE)
    os.pwrite(file, before, 0)
    data = os.urandom(size)
    write_mapped(file, memoryview(data), offset)
    behind = before[offset + size :]
    assert content(file) == before[:offset] + data + behind


def test_threads_that_write_at_once_leave_each_others_bytes(file: int) -> None:
    """Pieces share their first and last pages with their neighbours."""
    pieces = [os.urandom(3 * PAGE + 1000 + i) for i in range(64)]
    begins = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    with ThreadPoolExecutor(8) as threads:
        for write in [
            threads.submit(write_mapped, file, memoryview(piece), begin)
            for piece, begin in zip(pieces, begins, strict=True)
        ]:
            write.result()
    assert content(file) == b"".join(pieces)


@pytest.mark.parametrize("reserves", [False, True])
def test_a_file_system_that_cannot_reserve_or_map_is_written_to_as_ever(
    reserves: bool, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        asked.append(arguments)
        raise OSError(errno.ENODEV, "no such device")

    asked: list[object] = []
    monkeypatch.setattr(mapped_writes, "_reserve", lambda *place: reserves)
    monkeypatch.setattr(mapped_writes.mmap, "mmap", refused)
    write_mapped(file, memoryview(b"content"), 3)
    assert len(asked) == reserves
    assert content(file) == b"\0\0\0content"


def test_a_file_that_may_not_grow_is_an_error_and_no_signal(file: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PAGE, hard))
    try:
        with pytest.raises(OSError) as error:
            write_mapped(file, memoryview(bytes(3 * PAGE)), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.EFBIG
