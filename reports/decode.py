"""Objects of JSON into dataclasses: what has another type than declared is named by its path."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any], Any]

# What no XML or HTML text may hold, and halves of pairs, which UTF-8 cannot hold.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class _MismatchError(Exception):
    """What is wrong with a value, and the steps to it, which are added on the way out."""

    def __init__(self, before: str, after: str = "") -> None:
        self.before, self.after = before, after
        self.steps: list[str] = []

    def at(self, step: str) -> _MismatchError:
        """The same, one level further out."""
        self.steps.append(step)
        return self

    def __str__(self) -> str:
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"{self.before}{path or 'the line'}{self.after}"


def decode(kind: type[T], value: object) -> T:
    """`value` as a dataclass: members that it declares, others ignored.

    A field is read from the member of its name or of its metadata "key"; one with a default may be
    missing. Text loses control characters (they become U+FFFD); a number may be the string "nan",
    "inf" or "-inf". Raises ValueError like `outputs[0].gates[2].limit is "x", needs a number`.
    """
    known: Any = kind
    try:
        result: T = _decoder(known)(value)
    except _MismatchError as wrong:
        raise ValueError(str(wrong)) from None
    return result


def _needs(needed: str, value: object) -> _MismatchError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return _MismatchError("", f" is {shown}, needs {needed}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _needs("a string", value)
    # Interned: few words, of which a large file has millions.
    return sys.intern(value if value.isprintable() else _UNPRINTABLE.sub("\ufffd", value))


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _needs("a number that a double holds", value) from None
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _needs("a number", value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _needs("a whole number", value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _needs("true or false", value)
    return value


def _array(item: Decoder) -> Decoder:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _needs("an array", value)
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each))  # its length says where it was
        except _MismatchError as wrong:
            raise wrong.at(f"[{len(found)}]") from None
        return found

    return read


def _mapping(item: Decoder) -> Decoder:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _needs("an object", value)
        found = {}
        for key, each in value.items():
            try:
                found[_text(key)] = item(each)
            except _MismatchError as wrong:
                raise wrong.at(f".{key}") from None
        return found

    return read


def _or_null(item: Decoder) -> Decoder:
    return lambda value: None if value is None else item(value)


def _object(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    members = [
        (field.name, field.metadata.get("key", field.name), hints[field.name],
         _decoder(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]  # fmt: skip
    optional = {
        field.name
        for field in dataclasses.fields(kind)
        if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
    }
    # A frozen class would set one member after the other through object.__setattr__.
    slots = [getattr(kind, name).__set__ for name, *_ in members] if _slotted(kind) else []
    blank, assign = object.__new__, object.__setattr__

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _needs("an object", value)
        found = {}
        for name, key, exact, item in members:
            if key in value:
                given = value[key]
                if type(given) is exact and exact is not str:
                    found[name] = given
                    continue
                try:
                    found[name] = item(given)
                except _MismatchError as wrong:
                    raise wrong.at(f".{key}") from None
            elif name not in optional:
                raise _MismatchError("lacks ").at(f".{key}")
        if len(found) < len(members):
            return kind(**found)
        made = blank(kind)
        if slots:
            for put, member in zip(slots, found.values(), strict=True):
                put(made, member)
        else:
            assign(made, "__dict__", found)
        return made

    return read


def _slotted(kind: Any) -> bool:
    return all(hasattr(base, "__slots__") for base in kind.__mro__[:-1])


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
