#!/usr/bin/env python3
"""Puts a program and a library into a pure wheel, then one for a platform; ci/wheel calls it.

usage: ci/pack_wheel.py WHEEL PROGRAM LIBRARY PLATFORM FOLDER

In the environment that the wheel is installed to, the program is in `bin` next to `python`, the
library in `lib`. Prints the path of the wheel that was written.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

EXECUTABLE = 0o100755 << 16


def pack(wheel: Path, program: Path, library: Path, platform: str, folder: Path) -> Path:
    """Writes the wheel with both to `folder`; its path."""
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
            add(entry, data)
        for place, file in (("scripts", program), ("data/lib", library)):
            binary = zipfile.ZipInfo(f"{name}-{version}.data/{place}/{file.name}")
            binary.external_attr = EXECUTABLE
            add(binary, file.read_bytes())
        new.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")
    return out


def for_platform(text: str, platform: str) -> str:
    """The file WHEEL of a wheel for this platform."""
    tag = "Tag: py3-none-any"
    pure = "Root-Is-Purelib: true"
    if tag not in text or pure not in text:
        raise SystemExit(f"pack_wheel: the wheel is not a pure one: {text}")
    return text.replace(tag, f"Tag: py3-none-{platform}").replace(pure, "Root-Is-Purelib: false")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: ci/pack_wheel.py WHEEL PROGRAM LIBRARY PLATFORM FOLDER")
    wheel, program, library, platform, folder = sys.argv[1:]
    print(pack(Path(wheel), Path(program), Path(library), platform, Path(folder)))
