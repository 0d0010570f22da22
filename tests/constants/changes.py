"""What moving constants changes, as it is kept between runs and printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FACTORS = (2.0, 0.5)


class Constant(Protocol):
    """A number with a name that a verdict may depend on."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def value(self) -> str: ...


@dataclass
class Changes:
    """Of verdicts, where a constant is moved one way: what was judged."""

    missed: list[str] = field(default_factory=list)
    """Wrong, and passes then."""
    alarms: list[str] = field(default_factory=list)
    """Right, and fails then."""
    mended: list[str] = field(default_factory=list)
    """What was judged wrongly, and no longer is."""

    def add(self, name: str, *, wrong: bool, fails: bool) -> None:
        mended = wrong == fails
        (self.mended if mended else self.missed if wrong else self.alarms).append(name)

    @property
    def any(self) -> bool:
        return bool(self.missed or self.alarms or self.mended)


@dataclass
class Part:
    """Of one judge."""

    said: str = ""
    """What was judged, and how with constants as they are."""
    moved: dict[str, Changes] = field(default_factory=dict)
    """By file, name and factor; none of a constant that nothing read."""

    def of(self, constant: Constant, factor: float) -> Changes:
        return self.moved.setdefault(_key(constant, factor), Changes())

    def save(self, file: Path) -> None:
        moved = {key: vars(changes) for key, changes in self.moved.items()}
        file.write_text(json.dumps({"said": self.said, "moved": moved}, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> Part:
        found = json.loads(file.read_text())
        return cls(found["said"], {k: Changes(**it) for k, it in found["moved"].items()})


def _key(constant: Constant, factor: float) -> str:
    return f"{constant.file} {constant.name} {factor:g}"


def said(counts: Mapping[tuple[bool, bool], int]) -> str:
    """From how many are wrong or not, and fail or do not."""
    get = counts.get
    wrong, right = (get((it, True), 0) + get((it, False), 0) for it in (True, False))
    return (
        f"{wrong} wrong ones, of which {get((True, True), 0)} fail; "
        f"{right} right ones, of which {get((False, True), 0)} fail"
    )


def table(parts: Mapping[str, Part], constants: Sequence[Constant]) -> str:
    """A line for each constant that changes a verdict, and the names of the others."""
    lines = [f"{name}: {part.said}" for name, part in parts.items()]
    heads = "".join(f"{name:^28}" for name in parts)
    lines += ["", f"{'':48}{heads}", f"{'':48}" + f"{'x 2':^14}{'x 1/2':^14}" * len(parts)]
    lines.append(f"{'constant':26}{'value':22}" + "  wrong  right" * 2 * len(parts))
    still: dict[str, list[str]] = {}
    file = ""
    for it in constants:
        found = [[part.moved.get(_key(it, by)) for by in FACTORS] for part in parts.values()]
        if not any(one and one.any for of in found for one in of):
            read = any(one is not None for of in found for one in of)
            words = "read, and change no verdict" if read else "read by no verdict"
            still.setdefault(words, []).append(f"{it.name} ({it.file})")
            continue
        if it.file != file:
            file = it.file
            lines.append(file)
        cells = "".join(_cell(one) for of in found for one in of)
        lines.append(f"  {it.name:24}{it.value:22}{cells}")
    for words, names in still.items():
        lines += ["", f"{words}:", *(f"  {name}" for name in names)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cell(changes: Changes | None) -> str:
    if changes is None:
        return f"{'-':>7}{'-':>7}"
    return f"{len(changes.missed):7}{len(changes.alarms):7}"
