"""How small a wrong part of a 16-bit output is seen: a channel, a head, rows that are not stored, a
little too large; small values that are zeroed.

usage: python -m tests.engines.small_parts [--dtype bf16] [--block B] [FOLDER...]

Two right kernels are damaged: the recorded run itself, and one that keeps float32 inside. A row of
the table says of how many checkpoints a damage is seen, for each factor: of outputs of at least 8
rows (tokens of all batch entries), whose channels' gains are judged, and of those with fewer.
Without it all must pass.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from . import float32_inside
from .judged import cases, judge, stored_rows
from .kernel import UnsupportedError

ROOT = Path(__file__).parents[2]
BLOCKS = ("linear", "rms_norm", "sdpa", "glu_mlp")
FACTORS = (1.005, 1.01, 1.02, 1.05)
SMALL = 0.004
"""Values of norms, which are of size 1, that a kernel with a threshold gives as zeros."""
ROWS = ("batch", "token", "kv_token")
LEAST_ROWS = 8

Axes = tuple[str, ...]
Damage = Callable[[torch.Tensor, Axes, float, str], torch.Tensor | None]


def one_channel(y: torch.Tensor, axes: Axes, factor: float, id: str) -> torch.Tensor | None:
    """Of one index of all axes that are no rows; which, the id says."""
    return _scaled(y, axes, factor, id, [a for a in axes if a not in ROWS])


def one_head(y: torch.Tensor, axes: Axes, factor: float, id: str) -> torch.Tensor | None:
    return _scaled(y, axes, factor, id, ["head"]) if "head" in axes else None


def _scaled(y: torch.Tensor, axes: Axes, factor: float, id: str, of: list[str]) -> torch.Tensor:
    out, part, number = y.clone(), [slice(None)] * y.ndim, zlib.crc32(id.encode())
    for name in of:
        axis = axes.index(name)
        number, index = divmod(number, y.shape[axis])
        part[axis] = slice(index, index + 1)
    out[tuple(part)] = (y[tuple(part)].double() * factor).to(y.dtype)
    return out


def zeroed(y: torch.Tensor, axes: Axes, factor: float, id: str) -> torch.Tensor | None:
    small = (y != 0) & (y.abs() < SMALL)
    return torch.where(small, 0.0, y) if bool(small.any()) else None


class Recorded:
    """The 16-bit outputs of a recording's blocks that are stored whole, and those that are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recording = json.loads((folder / "recording.json").read_text())
        self.dtype = recording["provenance"]["dtype"]
        self.outputs = {
            (entry["id"], name): (entry["block"], output)
            for entry in recording["checkpoints"]
            if entry["block"] in BLOCKS
            for name, output in entry["outputs"].items()
        }
        self._files = {name: folder / entry["path"] for name, entry in recording["files"].items()}
        self._tensors = recording["tensors"]

    def references(self, block: str) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
        for where, (of, output) in self.outputs.items():
            if of == block and "rows" not in output:
                key = output["tensor"]
                with safe_open(self._files[self._tensors[key]["file"]], "pt") as stored:
                    yield where, stored.get_tensor(self._tensors[key].get("name", key))

    def axes(self, where: tuple[str, str]) -> Axes:
        return tuple(self.outputs[where][1]["axes"])

    def kernels(self, block: str) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
        """What a kernel gives that rounds once."""
        run = getattr(float32_inside, block)
        for case in cases(self.folder).get(block, ()):
            try:
                made = run(case)
            except UnsupportedError:
                continue
            named = made if isinstance(made, Mapping) else {case.outputs[0]: made}
            for name, y in named.items():
                yield (case.id, name), y.detach().to(case.dtype).contiguous()


def dropped_rows(recorded: Recorded) -> Damage:
    """All rows that the recording does not store."""

    def damage(y: torch.Tensor, axes: Axes, factor: float, id: str) -> torch.Tensor | None:
        found = [v for (of, _), v in stored_rows(recorded.folder).items() if of == id]
        if not found:
            return None
        axis, rows = found[0]
        out = (y.double() * factor).to(y.dtype)
        return out.index_copy(axis, rows, y.index_select(axis, rows))

    return damage


class Table:
    def __init__(self) -> None:
        self.seen: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
        self.alarms: list[str] = []

    def add(self, recorded: Recorded, block: str) -> None:
        kernels = {"as recorded": recorded.references, "float32 inside": recorded.kernels}
        for kernel, outputs in kernels.items():
            right = dict(outputs(block))
            if not right:
                continue
            passed = _passed(recorded.folder, right)
            if kernel == "as recorded":
                self.alarms += [f"{recorded.folder}: {id}" for id in right.keys() - passed]
            right = {where: y for where, y in right.items() if where in passed}
            self._damage(recorded, block, kernel, right)

    def _damage(
        self,
        recorded: Recorded,
        block: str,
        kernel: str,
        right: dict[tuple[str, str], torch.Tensor],
    ) -> None:
        ways: list[tuple[str, Damage, tuple[float, ...]]] = [
            ("a channel", one_channel, FACTORS),
            ("a head", one_head, FACTORS),
            ("rows not stored", dropped_rows(recorded), FACTORS),
        ]
        if block == "rms_norm":
            ways.append((f"below {SMALL} zero", zeroed, (0.0,)))
        for name, damage, factors in ways:
            for factor in factors:
                wrong = {}
                for where, y in right.items():
                    made = damage(y, recorded.axes(where), factor, where[0])
                    if made is not None and not torch.equal(made, y):
                        wrong[where] = made
                passed = _passed(recorded.folder, wrong) if wrong else set()
                for where, y in wrong.items():
                    rows = _rows(y, recorded.axes(where))
                    size = f"{'' if rows >= LEAST_ROWS else '<'}{LEAST_ROWS} rows"
                    key = (recorded.dtype, block, name, kernel, size, f"{factor:g}")
                    self.seen[key][0] += where not in passed
                    self.seen[key][1] += 1

    def lines(self) -> Iterator[str]:
        rows = dict.fromkeys(key[:5] for key in self.seen)
        yield f"{'':58}" + "".join(f"{'x ' + format(f, 'g'):>12}" for f in FACTORS)
        for row in sorted(rows):
            title = "{} {:9} {:17} {:15} {:>7}".format(*row)
            factors = [f"{f:g}" for f in FACTORS] if (*row, "1.01") in self.seen else ["0"]
            cells = (self.seen[(*row, f)] for f in factors)
            yield f"{title:58}" + "".join(f"{f'{seen}/{of}':>12}" for seen, of in cells)
        yield f"{len(self.alarms)} alarms" + "".join(f"\n  {alarm}" for alarm in self.alarms)


def _rows(y: torch.Tensor, axes: Axes) -> int:
    """Of the whole output."""
    return math.prod(y.shape[i] for i, name in enumerate(axes) if name in ROWS)


def _passed(folder: Path, outputs: Mapping[tuple[str, str], torch.Tensor]) -> set[tuple[str, str]]:
    """Those that are not seen."""
    named: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for (id, name), y in outputs.items():
        named[id][name] = y
    status = {each.checkpoint: each.status for each in judge(folder, named)}
    return {where for where in outputs if status[where[0]] in ("pass", "blind")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="recordings; default: all committed")
    parser.add_argument("--dtype", action="append", choices=("bf16", "f16"))
    parser.add_argument("--block", action="append", choices=BLOCKS)
    given = parser.parse_args()
    folders = given.folders or sorted(p.parent for p in ROOT.glob("fixtures/*/*/recording.json"))
    table = Table()
    for folder in folders:
        recorded = Recorded(folder)
        if recorded.dtype in (given.dtype or ("bf16", "f16")):
            for block in given.block or BLOCKS:
                table.add(recorded, block)
    print("\n".join(table.lines()))
    return 1 if table.alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
