#!/usr/bin/env python3
"""Puts a program and a library into a pure wheel, then one for a platform; ci/wheel calls it.

usage: ci/pack_wheel.py WHEEL PROGRAM LIBRARY PLATFORM FOLDER [LICENCES...]

In the environment that the wheel is installed to, the program is in `bin` next to `python`, the
library in `lib`. LICENCES are folders with a file `copyright`, of code that both contain. Prints
the path of the wheel that was written.
"""

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

EXECUTABLE = 0o100755 << 16
CONTAINED = "BSD-3-Clause AND MIT"
"""Licences of that code which are not Apache-2.0."""


def pack(
    wheel: Path, program: Path, library: Path, platform: str, folder: Path, licences: Sequence[Path]
) -> Path:
    """Writes the wheel with all of them to `folder`; its path."""
    name, version, *_ = wheel.name.split("-")
    out = folder / f"{name}-{version}-py3-none-{platform}.whl"
    info = f"{name}-{version}.dist-info"
    record = []
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):

        def add(entry: zipfile.ZipInfo | str, data: bytes) -> None:
            path = entry if isinstance(entry, str) else entry.filename
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}\n")
            new.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for entry in old.infolist():
            if entry.filename == f"{info}/RECORD":
                continue
            data = old.read(entry)
            if entry.filename == f"{info}/WHEEL":
                data = for_platform(data.decode(), platform).encode()
            if entry.filename == f"{info}/METADATA":
                data = for_index(data.decode(), [f"{it.name}.txt" for it in licences]).encode()
            add(entry, data)
        for place, file in (("scripts", program), ("data/lib", library)):
            binary = zipfile.ZipInfo(f"{name}-{version}.data/{place}/{file.name}")
            binary.external_attr = EXECUTABLE
            add(binary, file.read_bytes())
        for licence in licences:
            add(f"{info}/licenses/{licence.name}.txt", (licence / "copyright").read_bytes())
        new.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")
    return out


def replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise SystemExit(f"pack_wheel: {old!r} is not in {text}")
    return text.replace(old, new, 1)


def for_platform(text: str, platform: str) -> str:
    """The file WHEEL of a wheel for this platform."""
    text = replaced(text, "Tag: py3-none-any", f"Tag: py3-none-{platform}")
    return replaced(text, "Root-Is-Purelib: true", "Root-Is-Purelib: false")


def for_index(text: str, licences: Sequence[str]) -> str:
    """The file METADATA of a wheel with code of others. From an index, links to files of the
    repository would lead nowhere."""
    head, blank, description = text.partition("\n\n")
    expression = "License-Expression: Apache-2.0"
    head = replaced(head, expression, f"{expression} AND {CONTAINED}")
    files = "".join(f"\nLicense-File: {name}" for name in licences)
    head = replaced(head, "\nLicense-File: LICENSE", f"\nLicense-File: LICENSE{files}")
    return head + blank + re.sub(r"\[([^\]]*)\]\((?![a-z]+:)[^)\s]+\)", r"\1", description)


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit("usage: ci/pack_wheel.py WHEEL PROGRAM LIBRARY PLATFORM FOLDER [LICENCES...]")
    wheel, program, library, platform, folder, *licences = sys.argv[1:]
    paths = [Path(it) for it in licences]
    print(pack(Path(wheel), Path(program), Path(library), platform, Path(folder), paths))
