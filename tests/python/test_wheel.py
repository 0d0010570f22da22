"""ci/pack_wheel.py: a pure wheel becomes one for a platform, as an index takes it."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "ci" / "pack_wheel.py"
INFO = "it-1.0.dist-info"
METADATA = """\
Metadata-Version: 2.4
Name: it
Version: 1.0
License-Expression: Apache-2.0
License-File: LICENSE

# It

See [a page](docs/page.md#top) and [others](https://example.org/a).
"""


def packed(folder: Path, metadata: str = METADATA) -> tuple[int, str, Path]:
    """What the script ends with and prints, and the wheel that it makes."""
    pure = folder / "it-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pure, "w") as wheel:
        wheel.writestr("it/__init__.py", "x = 1\n")
        wheel.writestr(f"{INFO}/METADATA", metadata)
        wheel.writestr(f"{INFO}/WHEEL", "Root-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{INFO}/licenses/LICENSE", "ours")
        wheel.writestr(f"{INFO}/RECORD", "")
    (folder / "program").write_text("elf")
    (folder / "library.so").write_text("so")
    (folder / "libz-dev").mkdir(exist_ok=True)
    (folder / "libz-dev" / "copyright").write_text("theirs")
    names = (pure, folder / "program", folder / "library.so", "manylinux_2_28_x86_64", folder)
    command = [sys.executable, SCRIPT, *names, folder / "libz-dev"]
    done = subprocess.run(command, capture_output=True, text=True)
    return (
        done.returncode,
        done.stdout + done.stderr,
        folder / pure.name.replace("any", "manylinux_2_28_x86_64"),
    )


def test_a_wheel_for_a_platform(tmp_path: Path) -> None:
    code, printed, path = packed(tmp_path)
    assert (code, printed) == (0, f"{path}\n")
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
        modes = {name: wheel.getinfo(name).external_attr >> 16 & 0o777 for name in files}
    assert files["it-1.0.data/scripts/program"] == b"elf"
    assert files["it-1.0.data/data/lib/library.so"] == b"so"
    assert modes["it-1.0.data/scripts/program"] == 0o755
    assert files[f"{INFO}/licenses/libz-dev.txt"] == b"theirs"
    assert b"Root-Is-Purelib: false\nTag: py3-none-manylinux_2_28_x86_64" in files[f"{INFO}/WHEEL"]
    record = files.pop(f"{INFO}/RECORD").decode().splitlines()
    rows = {name: (digest, size) for name, digest, size in csv.reader(record)}
    assert rows.pop(f"{INFO}/RECORD") == ("", "")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows.pop(name) == (f"sha256={digest}", str(len(data)))
    assert not rows


def test_its_metadata_has_all_licences_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    _, _, path = packed(tmp_path)
    with zipfile.ZipFile(path) as wheel:
        metadata = message_from_string(wheel.read(f"{INFO}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND MIT"
    assert metadata.get_all("License-File") == ["LICENSE", "libz-dev.txt"]
    assert metadata.get_payload() == ("# It\n\nSee a page and [others](https://example.org/a).\n")


def test_another_form_is_refused(tmp_path: Path) -> None:
    code, printed, _ = packed(tmp_path, METADATA.replace("License-Expression", "License"))
    assert code == 1
    assert "pack_wheel: 'License-Expression: Apache-2.0' is not in" in printed
