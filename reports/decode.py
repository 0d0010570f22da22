"""Objects of JSON into dataclasses: what has another type than declared is named by its path."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]

# What no XML or HTML text may hold, and halves of pairs, which UTF-8 cannot hold.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def decode(kind: type[T], value: object, path: str = "") -> T:
    """`value` as a dataclass: members that it declares, others ignored.

    A field is read from the member of its name or of its metadata "key". Text loses control
    characters (they become U+FFFD); a number may be the string "nan", "inf" or "-inf". Raises
    ValueError like `outputs[0].gates[2].limit is "x", needs a number`.
    """
    known: Any = kind
    result: T = _decoder(known)(value, path)
    return result


def _wrong(path: str, value: object, needed: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return ValueError(f"{path or 'the line'} is {shown}, needs {needed}")


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, value, "a string")
    return _UNPRINTABLE.sub("\ufffd", value)


def _number(value: Any, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong(path, value, "a number that a double holds") from None
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _wrong(path, value, "a number")


def _whole(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(path, value, "a whole number")
    return value


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, value, "true or false")
    return value


def _array(item: Decoder) -> Decoder:
    def read(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(path, value, "an array")
        return [item(each, f"{path}[{i}]") for i, each in enumerate(value)]

    return read


def _mapping(item: Decoder) -> Decoder:
    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        return {_text(key, path): item(each, f"{path}.{key}") for key, each in value.items()}

    return read


def _or_null(item: Decoder) -> Decoder:
    return lambda value, path: None if value is None else item(value, path)


def _object(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    members = [
        (field.name, field.metadata.get("key", field.name), _decoder(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        found = {}
        for name, key, item in members:
            where = f"{path}.{key}" if path else key
            if key not in value:
                raise ValueError(f"lacks {where}")
            found[name] = item(value[key], where)
        return kind(**found)

    return read


@functools.cache
def _decoder(kind: Any) -> Decoder:
    simple: dict[Any, Decoder] = {str: _text, float: _number, int: _whole, bool: _flag}
    if kind in simple:
        return simple[kind]
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is list:
        return _array(_decoder(arguments[0]))
    if origin is dict:
        return _mapping(_decoder(arguments[1]))
    if origin in (types.UnionType, typing.Union):
        return _or_null(_decoder(next(each for each in arguments if each is not type(None))))
    return _object(kind)
