"""`plumbline cache`: what is kept of problems that were judged; `plumbline cache clear` removes
it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import UsageError
from ..format.cache_folder import MOST, VARIABLE, named_folder


def main(words: Sequence[str]) -> int:
    if list(words) not in ([], ["clear"]):
        print("usage: plumbline cache [clear]", file=sys.stderr)
        return 2
    folder = named_folder()
    if folder is None:
        print(f"no problem is kept: {VARIABLE} names no folder")
        return 0
    if not words:
        count, size = sum(1 for _ in folder.files()), folder.bytes()
        print(f"{folder.path}: {count} problems, {size} bytes of at most {MOST}")
        return 0
    try:
        print(f"{folder.path}: {folder.clear()} problems removed")
    except UsageError as error:
        print(f"plumbline cache: {error}", file=sys.stderr)
        return 2
    return 0
