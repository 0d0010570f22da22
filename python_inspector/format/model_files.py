"""Weights by reference: the safetensors files of the folder that a model was loaded from.

A recording names such a file and the tensor in it with its SHA-256. Files are hashed once, tensor
by tensor; the hashes are kept in the user's cache as long as a file has the same size, times of
modification and change, device and inode.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .recording import dtype_name
from .safetensors_file import SafetensorsFile, read_header
from .shared_payloads import require_shared

if TYPE_CHECKING:
    import torch

MODEL_FILE = "model:"
"""In front of the name of such a file among a recording's files."""


class ModelFolder:
    """The safetensors files of a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """FormatError where it has none that can be read."""
        self.folder = Path(os.path.abspath(folder))
        self.files: dict[str, SafetensorsFile] = {}
        errors = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                self.files[path.name] = read_header(path)
            except FormatError as error:  # a dtype that recordings do not have
                errors.append(str(error))
        if not self.files:
            reason = errors[0] if errors else "it has no .safetensors file"
            raise FormatError(f"{self.folder}: no weights to refer to: {reason}")
        self._files_of = {name: file for file, f in self.files.items() for name in f.tensors}
        self._hashes = {name: _Hashes(file) for name, file in self.files.items()}

    def finder(self, name: str, t: torch.Tensor) -> Callable[[str], str | None] | None:
        """From a SHA-256 of `t` to the file that holds it under this name; None if none can."""
        file = self._files_of.get(name)
        if file is None:
            return None
        entry = self.files[file].tensors[name]
        if (entry.dtype, entry.shape) != (dtype_name(t.dtype), tuple(t.shape)):
            return None
        hashes = self._hashes[file]
        return lambda sha256: file if hashes.of(name) == sha256 else None

    def keep(self) -> None:
        """Keeps what was hashed for the next time."""
        for hashes in self._hashes.values():
            hashes.keep()


class _Hashes:
    """The SHA-256 of a file's tensors, by name."""

    def __init__(self, file: SafetensorsFile) -> None:
        self._file = file
        self._state = _state_of(file.path)
        self._path = _cache() / f"{hashlib.sha256(str(file.path).encode()).hexdigest()}.json"
        self._known = self._load()
        self._lock = threading.Lock()
        self._new = False

    def of(self, name: str) -> str:
        with self._lock:
            known = self._known.get(name)
        if known is None:
            known = self._file.sha256(name)
            with self._lock:
                self._known[name] = known
                self._new = True
        return known

    def keep(self) -> None:
        if not self._new or _state_of(self._file.path) != self._state:
            return
        text = json.dumps({"file": self._state, "tensors": self._known})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(text)
            partial.replace(self._path)
        except OSError:
            pass  # a cache: the next time hashes again

    def _load(self) -> dict[str, str]:
        try:
            kept = json.loads(self._path.read_text())
            return dict(kept["tensors"]) if kept["file"] == self._state else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _state_of(path: Path) -> list[Any]:
    """What changes when the file does."""
    status = path.stat()
    times = (status.st_mtime_ns, status.st_ctime_ns)  # the second cannot be set by programs
    return [str(path), status.st_size, *times, status.st_dev, status.st_ino]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plumbline" / "sha256"


def file_of(entry: Mapping[str, Any]) -> str:
    """Among open_files the one that holds the payload of a table's entry."""
    model_file = entry.get("model_file")
    return str(entry["file"]) if model_file is None else f"{MODEL_FILE}{model_file}"


def name_of(entry: Mapping[str, Any], key: str) -> str:
    """What the payload of a table's entry is called in that file."""
    return str(entry.get("name") or entry.get("payload_of") or key)


def read_tensor(
    files: Mapping[str, SafetensorsFile], table: Mapping[str, Any], key: str
) -> torch.Tensor:
    """A copy of a recorded tensor or weight that is not generated; `files`: of open_files."""
    entry = table[key]
    return files[file_of(entry)].read(name_of(entry, key)).reshape(entry["shape"])


def open_files(folder: Path, recording: Mapping[str, Any]) -> dict[str, SafetensorsFile]:
    """The checked headers of a recording's files: "tensors", "weights", "model:<name>".

    FormatError where one is missing or has another size, or where a tensor does not fit the one
    whose payload it has. Weights by reference are sought in the folder that the environment
    variable PLUMB_WEIGHTS names, else where the recording says.
    """
    require_shared(folder / "recording.json", recording.get("tensors", {}))
    files = {name: read_header(folder / e["path"]) for name, e in recording["files"].items()}
    referred = recording.get("model_files", {"files": {}})
    for name, entry in referred["files"].items():
        path = Path(os.environ.get("PLUMB_WEIGHTS") or referred["folder"]) / name
        try:
            files[f"{MODEL_FILE}{name}"] = file = read_header(path)
        except FormatError as error:
            raise FormatError(
                f"{folder}: the model's weights are not copied into this recording, and {error}: "
                "set PLUMB_WEIGHTS to the folder that holds them now"
            ) from None
        if file.size != entry["bytes"]:
            raise FormatError(
                f"{path}: {file.size} bytes, model_files.files.{name}.bytes says {entry['bytes']}"
            )
    return files
