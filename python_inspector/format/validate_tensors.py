"""Checks of a recording's table of tensors: against itself, and against what the files hold."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .generator import MOST_BYTES, Generator, generate
from .model_files import file_of, name_of
from .payload import tensor_bytes
from .recording import ITEM_SIZES, TORCH_DTYPES
from .safetensors_file import SafetensorsFile


def table_findings(
    recording: Path, table: Mapping[str, Any], files: Mapping[str, SafetensorsFile]
) -> Iterator[str]:
    """Of the table in the file `recording` against the files; it has no shared_findings."""
    for key, entry in table.items():
        if "generator" in entry:
            yield from _generated_findings(f"{recording}: tensors.{key}", entry)
            continue
        if "payload_of" in entry:
            continue  # it fits the tensor whose payload it has, and that one is looked at
        file, name = files[file_of(entry)], name_of(entry, key)
        where = f"{recording}: tensors.{key}"
        if name not in file.tensors:
            yield f"{where}: {file.path} has no tensor {name}"
            continue
        stored = file.tensors[name]
        if (stored.dtype, list(stored.shape)) != (entry["dtype"], entry["shape"]):
            yield (
                f"{where}: {entry['dtype']} {entry['shape']}, in {file.path} it is "
                f"{stored.dtype} {list(stored.shape)}"
            )
        elif (digest := file.sha256(name)) != entry["sha256"]:
            yield f"{where}.sha256: {entry['sha256']}, the payload's is {digest}"


def _generated_findings(where: str, entry: Mapping[str, Any]) -> Iterator[str]:
    """A rule that cannot be followed, or gives something else than was recorded."""
    size = math.prod(entry["shape"]) * ITEM_SIZES[entry["dtype"]]
    if size > MOST_BYTES:
        yield f"{where}.generator: would make {size} bytes, the limit is {MOST_BYTES}"
        return
    rule = {name: value for name, value in entry["generator"].items() if name != "kind"}
    try:
        made = generate(Generator(**rule), TORCH_DTYPES[entry["dtype"]], tuple(entry["shape"]))
    except FormatError as error:
        yield f"{where}.generator: {error}"
        return
    digest = hashlib.sha256(tensor_bytes(made)).hexdigest()
    if digest != entry["sha256"]:
        yield f"{where}.sha256: {entry['sha256']}, the generator gives {digest}"
