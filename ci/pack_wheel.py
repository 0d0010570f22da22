#!/usr/bin/env python3
"""Puts a program into a pure wheel, which then is one for a platform; ci/wheel calls it.

usage: ci/pack_wheel.py WHEEL PROGRAM PLATFORM FOLDER

The program lands beside `python` in the environment that the wheel is installed to. Prints the path
of the wheel that was written.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

EXECUTABLE = 0o100755 << 16


def pack(wheel: Path, program: Path, platform: str, folder: Path) -> Path:
    """Writes the wheel with the program to `folder`; its path."""
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
        script = zipfile.ZipInfo(f"{name}-{version}.data/scripts/{program.name}")
        script.external_attr = EXECUTABLE
        add(script, program.read_bytes())
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
    if len(sys.argv) != 5:
        sys.exit("usage: ci/pack_wheel.py WHEEL PROGRAM PLATFORM FOLDER")
    print(pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
