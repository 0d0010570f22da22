"""The rows of kernels/ops/layout_list.h, which devices have, as values of Python.

A row is an identifier, a name, and fields as C++ initialises them: words, whole numbers, and
structures by their fields' names or by place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from ..aliases import PACKAGE

_ROW = re.compile(r'^PLUMB_LAYOUT\(\w+, "([\w-]+)"(?:, (.*?))?\)(?:\s|$)', re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"\.\w+|[\w:-]+|[{}=,]")


def rows() -> Mapping[str, Mapping[str, Any]]:
    """By the layout's name, in the order of the table: its fields that are not as by default."""
    text = (resources.files(PACKAGE) / "data" / "layout_list.h").read_text()
    text = re.sub(r"//.*", "", text)
    return {name: _structure(_tokens(f"{{{fields or ''}}}")) for name, fields in _ROW.findall(text)}


def _tokens(text: str) -> Iterator[str]:
    return iter(_TOKEN.findall(text)[1:])


def _structure(tokens: Iterator[str]) -> Any:
    """What is between braces: fields by name, or a list."""
    by_name: dict[str, Any] = {}
    by_place: list[Any] = []
    name = None
    for token in tokens:
        if token == "}":
            break
        if token.startswith("."):
            name = token[1:]
        elif token not in "=,":
            value = _structure(tokens) if token == "{" else _value(token)
            if name is None:
                by_place.append(value)
            else:
                by_name[name] = value
            name = None
    return by_name or by_place


def _value(token: str) -> Any:
    if re.fullmatch(r"-?\d+", token):
        return int(token)
    return {"true": True, "false": False}.get(token, token.rpartition("::")[2])
