"""In which dtypes devices compute each op: the rows of kernels/ops/op_list.h and the sets of
kernels/ops/dtypes.h, read as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from ..aliases import PACKAGE

_ROW = re.compile(r"^PLUMB_OP\((\w+),(.*?)(?=^PLUMB_OP|^#undef|\Z)", re.MULTILINE | re.DOTALL)
_DTYPES = re.compile(r"\.dtypes = (\w+)")
_SET = re.compile(r"constexpr DTypes (\w+)([^;]*);")
_MEMBER = re.compile(r"DType::(\w+)|\b(k\w+)")
_USUAL = "kFloats"
"""OpRow::dtypes, kernels/ops/table.h."""


def dtypes_of_ops() -> Mapping[str, frozenset[str]]:
    """By the op's name, in the order of the table."""
    sets: dict[str, frozenset[str]] = {}
    for name, members in _SET.findall(_text("dtypes.h")):
        found: frozenset[str] = frozenset()
        for dtype, other in _MEMBER.findall(members):
            found |= sets[other] if other else {"bool" if dtype == "boolean" else dtype}
        sets[name] = found
    rows = _ROW.findall(_text("op_list.h"))
    given = {name: _DTYPES.search(fields) for name, fields in rows}
    return {name: sets[it[1] if it else _USUAL] for name, it in given.items()}


def _text(name: str) -> str:
    text = (resources.files(PACKAGE) / "data" / name).read_text()
    return re.sub(r"//.*", "", text)
