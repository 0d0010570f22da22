"""Results of shards, and of runs on other devices, as those of one run.

The merged file depends on what was found alone, not on who found it when: checkpoints are ordered
by recording, id and device, times are left out as by `harness --no-times`, and the command is the
one that repeats the whole. So the merged shards have the bytes of the merged unsharded file.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..decode import decode
from ..files import check_writable, keep_inputs, replacing
from ..json_lines import Line
from ..reader import SCHEMA, read_entries
from ..results import Header, Placed, Summary
from .program import summary_of
from .sorting import Record, Sorter

SHARD = re.compile("[1-9][0-9]{0,6}/[1-9][0-9]{0,6}")
SHARDING = ("shard", "shard-by")  # options of which the whole run has none
LISTS = ("fixture", "plugin")  # options that may be given again
NO_OPTIONS = {"selected": "the size of the selection", "plugin-sha256": "the SHA-256 of --plugin"}
"""What a run says of itself in addition to its options, in words."""
MOST_NAMED = 10  # shards that a message lists


@dataclass(frozen=True)
class Part:
    """What one file has."""

    path: Path
    header: Header
    counts: Counter[str]  # checkpoints by device
    recordings: set[tuple[str, str]]  # fixture, SHA-256 of its recording.json

    @property
    def devices(self) -> list[str]:
        """Their names."""
        return [device.partition(": ")[0] for device in self.header.devices]

    @property
    def shard(self) -> tuple[int, int]:
        """Index from 1, and how many there are."""
        index, _, count = self.header.request.get("shard", "1/1").partition("/")
        return int(index), int(count)

    @property
    def request(self) -> dict[str, str]:
        """What the whole run was asked."""
        return {name: it for name, it in self.header.request.items() if name not in SHARDING}


def canonical(line: Line) -> str:
    """One line; equal objects have equal text."""
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"


def check_request(place: str, request: dict[str, str]) -> None:
    """ValueError unless it says what the whole run was asked, and which shard this is."""
    if not request:
        raise ValueError(f"{place}: does not say what was asked: its harness is too old to merge")
    selected, shard = (request.get(name, "") for name in ("selected", "shard"))
    if not re.fullmatch("[0-9]{1,18}", selected):
        raise ValueError(f"{place}: request.selected is {selected!r}, needs a whole number")
    if shard and not SHARD.fullmatch(shard):
        raise ValueError(f"{place}: request.shard is {shard!r}, needs i/n")


def read_part(path: Path, lines: Sorter) -> Part:
    """A file of `harness --json`, which has to be of one complete run. ValueError."""
    part: Part | None = None
    complete = False
    for place, line, entry in read_entries(path, placed=True):
        match entry:
            case Header() if part is None:
                check_request(place, entry.request)
                part = Part(path, entry, Counter(), set())
            case Placed() if part:
                key = part.header.key(entry)
                text = canonical({**line, "seconds": "nan"})
                # Two recordings may have one name.
                lines.add(Record([*map(str, key), entry.fixture], place, text))
                part.counts[entry.device] += 1
                part.recordings.add((entry.fixture, entry.golden_sha256))
            case Summary():
                complete = not entry.interrupted
            case _:
                raise ValueError(f"{place}: a second run and comparisons cannot be merged")
    if part is None or not complete:
        raise ValueError(f"{path}: was cut short; run it again (with --journal it continues)")
    return part


def same(parts: Sequence[Part], what: str, values: Iterable[object]) -> None:
    """ValueError naming two files that differ."""
    listed = list(values)
    for part, value in zip(parts, listed, strict=True):
        if value != listed[0]:
            raise ValueError(
                f"{what} is {listed[0]} in {parts[0].path} and {value} in {part.path}: "
                "these are not parts of one run"
            )


def check_one_run(parts: Sequence[Part]) -> None:
    """ValueError unless program, request and recordings are the same in all of them."""
    same(parts, "version", [part.header.version for part in parts])
    same(parts, "--shard-by", [part.header.request.get("shard-by") for part in parts])
    same(parts, "commit", [part.header.environment.get("commit") for part in parts])
    for option in sorted({name for part in parts for name in part.request}):
        name = NO_OPTIONS.get(option, f"--{option}")
        same(parts, name, [part.request.get(option) for part in parts])
    seen: dict[str, tuple[str, Path]] = {}
    for part in parts:
        for fixture, digest in sorted(part.recordings):
            first, path = seen.setdefault(fixture, (digest, part.path))
            if first != digest:
                raise ValueError(
                    f"{fixture} has the hash {first[:12]} in {path} and {digest[:12]} in "
                    f"{part.path}: the recordings differ; use the same ones"
                )


def check_shards(parts: Sequence[Part]) -> None:
    """ValueError naming shards that are missing or there twice, on each device."""
    by_device: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        for device in part.devices:
            by_device[device].append(part)
    for device, mine in by_device.items():
        same(mine, f"the number of shards on {device}", [part.shard[1] for part in mine])
        count = mine[0].shard[1]
        found = Counter(part.shard[0] for part in mine)
        missing = [f"{i}/{count}" for i in range(1, count + 1) if i not in found]
        if missing:
            more = len(missing) - MOST_NAMED
            named = ", ".join(missing[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            raise ValueError(f"{device}: no file has the shards {named}")
        for index, times in found.items():
            if times > 1:
                paths = ", ".join(str(part.path) for part in mine if part.shard[0] == index)
                raise ValueError(f"{device}: shard {index}/{count} is in {times} files: {paths}")


def distinct(lines: Iterable[Record]) -> Iterator[str]:
    """The lines' texts; ValueError where a checkpoint is there twice."""
    before: Record | None = None
    for record in lines:
        if before and before.key == record.key:
            recording, checkpoint, device, _, _, fixture = record.key
            first, here = (each.place.rsplit(":", 1)[0] for each in (before, record))
            again = "there twice in one run" if first == here else f"in {first}, too"
            raise ValueError(
                f"{record.place}: {recording} {fixture} {checkpoint} {device} is {again}"
            )
        before = record
        yield record.text


def check_counts(parts: Sequence[Part]) -> None:
    """ValueError where the checkpoints are not what was selected."""
    counts = sum((part.counts for part in parts), Counter[str]())
    selected = int(parts[0].request["selected"])
    for device, count in sorted(counts.items()):
        if count != selected:
            raise ValueError(
                f"{device}: {count} checkpoints of {selected} that were selected; a run that "
                "--fail-fast stopped is not complete"
            )


def command_of(request: dict[str, str], devices: Sequence[str]) -> str:
    """The command that repeats the whole run."""
    words = ["harness"]
    for name, value in request.items():
        if name in LISTS:
            words += [word for one in value.split(",") for word in (f"--{name}", one)]
        elif name not in NO_OPTIONS:
            words += [f"--{name}"] if value == "yes" else [f"--{name}", value]
    return shlex.join([*words, "--device", ",".join(devices)])


def merged_run(parts: Sequence[Part]) -> Line:
    """The line of all runs; what differs between machines is listed."""
    first, environments = parts[0].header, [part.header.environment for part in parts]
    environment = {
        name: ", ".join(sorted({one.get(name, "") for one in environments}))
        for name in sorted(set().union(*environments))
    }
    names = sorted({name for part in parts for name in part.devices})
    return {
        "type": "run",
        "version": first.version,
        "schema": SCHEMA,
        "command": command_of(parts[0].request, names),
        "started": "",
        "environment": environment,
        "devices": sorted({device for part in parts for device in part.header.devices}),
        "request": parts[0].request,
    }


def merge(paths: Sequence[Path], out: Path, harness: Path) -> Summary:
    """Writes the merged file whole or not at all; its summary, which the harness gives."""
    keep_inputs(out, paths)
    check_writable(out)  # its error names the file, not the folder of the lines to be sorted
    beside = None if out.exists() and not out.is_file() else out.resolve().parent
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=beside) as folder:
        lines = Sorter(Path(folder))
        parts = [read_part(path, lines) for path in paths]
        check_one_run(parts)
        check_shards(parts)
        with replacing(out) as partial:
            with partial.open("w", encoding="utf-8") as file:
                file.write(canonical(merged_run(parts)))
                file.writelines(distinct(lines))
            check_counts(parts)
            summary = summary_of(partial, harness)
            with partial.open("a", encoding="utf-8") as file:
                file.write(canonical(summary))
    return decode(Summary, summary)
