"""The accuracy baseline of a device: the accepted figures, one JSON line per checkpoint.

The first line says of which device and runs they are. An entry whose run is of another commit than
the first one names it. Whenever a worse figure was accepted, a line of type "accepted" says who
did, when, why, and what the figures were. Everything is ordered, so that a diff shows what changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..files import replace_text
from ..json_lines import Line, json_lines, opened
from .compare import Comparison, Kind, compare
from .figures import (
    Checkpoint,
    Key,
    Provenance,
    Run,
    output_from_json,
    output_to_json,
    text,
    texts,
    to_json,
)

SCHEMA = 2  # 1 had no histograms, and named the device in the runs only
_DIGITS = 5
_HASH_DIGITS = 16
_ANY = re.compile("")


@dataclass(frozen=True)
class Acceptance:
    """Who took worse figures, and why."""

    when: str
    who: str
    commit: str
    reason: str


@dataclass(frozen=True)
class Baseline:
    """A baseline file's content."""

    path: Path
    device: str
    runs: list[Line]  # what measured it
    checkpoints: dict[Key, Checkpoint]
    commits: dict[Key, str] = field(default_factory=dict)  # that each was measured at
    accepted: list[Line] = field(default_factory=list)
    schema: int = SCHEMA

    @property
    def first_commit(self) -> str:
        """Of the first run, whose entries name none."""
        return text(self.runs[0].get("commit", "")) if self.runs else ""

    def as_run(self) -> Run:
        """As what a run is compared with."""
        source = self.runs[-1] if self.runs else {}
        provenance = Provenance(
            command=source.get("command", ""),
            version=source.get("version", ""),
            environment=source.get("environment", {}),
            devices=tuple(source.get("devices", ())),
            commit=source.get("commit", ""),
        )
        return Run(str(self.path), provenance, self.checkpoints)


def is_baseline(path: Path) -> bool:
    """Whether the file's first line says so. Raises OSError, and ValueError for no JSON lines."""
    with opened(path) as file:
        return re.match(rb'\s*\{\s*"type"\s*:\s*"baseline"', file.read(200)) is not None


def read(path: Path) -> Baseline:
    """Reads a baseline of this schema or an older one.

    Raises OSError, and ValueError naming file and line for what is none or damaged.
    """
    lines = list(json_lines(path))
    place, header = lines[0]
    try:
        if header["type"] != "baseline":
            raise TypeError(f"its first line is of type {header['type']!r}")
        if header["schema"] not in range(1, SCHEMA + 1):
            raise TypeError(
                f"it has schema {header['schema']}, this program knows {SCHEMA}: update Plumbline"
            )
        device = text(header["device"]) if header["schema"] > 1 else _device_of(header)
        found = Baseline(path, device, list(header["runs"]), {}, schema=header["schema"])
        first = found.first_commit
        for place, line in lines[1:]:  # noqa: B007  the error names the place
            if line.get("type") == "accepted":
                found.accepted.append(line)
                continue
            key, checkpoint = _entry(line, device)
            if key in found.checkpoints:
                raise TypeError(f"{key.recording} {key.checkpoint} is there twice")
            found.checkpoints[key] = checkpoint
            found.commits[key] = text(line.get("commit", first))
    except KeyError as error:
        raise ValueError(f"{place}: a baseline's line lacks {error}; restore the file") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{place}: no baseline of accuracy: {error}") from error
    return found


def _device_of(header: Line) -> str:
    """Of schema 1: the name before the words of the only device."""
    devices = {text(words).split(": ")[0] for run in header["runs"] for words in run["devices"]}
    if len(devices) != 1:
        raise TypeError(f"it is of {len(devices)} devices: {', '.join(sorted(devices))}")
    return devices.pop()


def _entry(line: Line, device: str) -> tuple[Key, Checkpoint]:
    if not isinstance(line["fused"], bool):
        raise TypeError(f"fused is {line['fused']!r}")
    key = Key(
        text(line["recording"]), text(line["checkpoint"]), device, text(line["dtype"]),
        line["fused"],
    )  # fmt: skip
    return key, Checkpoint(
        block=text(line["block"]),
        status=text(line["status"]),
        contract=text(line["contract"]),
        impl=texts(line["impl"]),
        outputs={text(name): output_from_json(o) for name, o in line["outputs"].items()},
        bits=text(line["bits"]),
        golden=text(line["golden"]),
    )


def _line(key: Key, checkpoint: Checkpoint) -> Line:
    return {
        "recording": key.recording,
        "checkpoint": key.checkpoint,
        "block": checkpoint.block,
        "dtype": key.dtype,
        "status": checkpoint.status,
        "contract": checkpoint.contract,
        "impl": list(checkpoint.impl),
        "fused": key.fused,
        "outputs": {n: output_to_json(o, _DIGITS) for n, o in checkpoint.outputs.items()},
        "bits": checkpoint.bits[:_HASH_DIGITS],
        "golden": checkpoint.golden[:_HASH_DIGITS],
    }


def write(baseline: Baseline) -> None:
    """Replaces the file at once, or leaves it as it is. Raises OSError."""
    header = {
        "type": "baseline", "schema": SCHEMA, "device": baseline.device, "runs": baseline.runs,
    }  # fmt: skip
    first = baseline.first_commit
    entries = sorted(
        _compact(_line(key, checkpoint) | _another_commit(baseline.commits[key], first))
        for key, checkpoint in baseline.checkpoints.items()
    )
    accepted = [_compact(line) for line in baseline.accepted]
    replace_text(baseline.path, "\n".join([_compact(header), *accepted, *entries]) + "\n")


def _another_commit(commit: str, first: str) -> Line:
    return {} if commit == first else {"commit": commit}


def _compact(line: Line) -> str:
    return json.dumps(line, separators=(",", ":"))


def of_runs(runs: Sequence[Run], path: Path, device: str | None = None) -> Baseline:
    """The baseline of what runs measured on one device.

    Raises ValueError where there are several devices and none is named, and for a checkpoint that
    two runs have.
    """
    devices = sorted({key.device for run in runs for key in run.checkpoints})
    if device is None and len(devices) != 1:
        raise ValueError(f"the runs are of {', '.join(devices)}: name one of them with --device")
    device = device or devices[0]
    found = Baseline(path, device, [_source(run, device) for run in runs], {})
    for run in runs:
        for key, checkpoint in run.checkpoints.items():
            if key.device != device:
                continue
            if key in found.checkpoints:
                raise ValueError(f"{run.name}: {key.recording} {key.checkpoint} is in two runs")
            found.checkpoints[key] = checkpoint
            found.commits[key] = run.provenance.commit
    if not found.checkpoints:
        raise ValueError(f"no run has a checkpoint on {device}: there are {', '.join(devices)}")
    return found


def without_failures(baseline: Baseline) -> tuple[Baseline, dict[Key, Checkpoint]]:
    """What does not fail, and what does: no figure to hold a later run to."""
    failing = {key: c for key, c in baseline.checkpoints.items() if c.failed}
    kept = {key: c for key, c in baseline.checkpoints.items() if key not in failing}
    return replace(baseline, checkpoints=kept), failing


def _source(run: Run, device: str) -> Line:
    source = run.provenance
    return {
        "command": source.command,
        "version": source.version,
        "environment": dict(source.environment),
        "devices": [words for words in source.devices if words.split(": ")[0] == device],
        "commit": source.commit,
        **({"dirty": True} if source.dirty else {}),
    }


@dataclass(frozen=True)
class Offer:
    """What runs would change in a baseline, by what compare() finds."""

    measured: Baseline  # by the runs
    found: Comparison
    better: dict[Key, Checkpoint]  # no worse and no larger, or it is new and does not fail
    larger: dict[Key, Checkpoint]  # no worse, yet with small losses that could add up
    refused: dict[Key, tuple[Checkpoint, str]]  # and why: it is worse, say
    gone: Sequence[Key]  # not in the run


def offer(baseline: Baseline, runs: Sequence[Run], wanted: re.Pattern[str] = _ANY) -> Offer:
    """What runs would change; wanted: only ids in which this is found."""
    measured = of_runs(runs, baseline.path, baseline.device)
    old, new = (_only(wanted, side) for side in (baseline, measured))
    found = compare([old.as_run()], [new.as_run()])
    findings = {finding.key: finding for finding in found.findings}
    out = Offer(measured, found, {}, {}, {}, found.vanished)
    for key, now in new.checkpoints.items():
        before, finding = old.checkpoints.get(key), findings.get(key)
        if before and _line(key, before) == _line(key, now):
            continue
        if finding and (finding.worse or finding.kind == Kind.NOT_COMPARABLE):
            out.refused[key] = now, finding.kind.value
        elif before is None and now.failed:
            out.refused[key] = now, f"new, status {now.status}"
        else:
            (out.larger if before and _larger(before, now) else out.better)[key] = now
    return out


def _only(wanted: re.Pattern[str], baseline: Baseline) -> Baseline:
    named = {k: c for k, c in baseline.checkpoints.items() if wanted.search(k.checkpoint)}
    return replace(baseline, checkpoints=named)


def _larger(before: Checkpoint, now: Checkpoint) -> bool:
    """Whether taking it would move the best figures, by however little."""
    return any(
        not float(to_json(now.outputs[name].error, _DIGITS)) <= output.error
        for name, output in before.outputs.items()
        if name in now.outputs
    )


def accept(
    baseline: Baseline, offered: Offer, acceptance: Acceptance | None, drop_gone: bool = False
) -> Baseline:
    """The baseline with what is better and, where an acceptance says why, with all there is."""
    others = offered.larger | {key: now for key, (now, _) in offered.refused.items()}
    gone = offered.gone if drop_gone else ()
    changes = [
        [*_short(key), _figure(baseline.checkpoints.get(key)), _figure(others.get(key))]
        for key in sorted([*others, *gone])
    ]
    if acceptance is None or not changes:
        return _with(baseline, offered.measured, offered.better)
    line = {"type": "accepted", **asdict(acceptance), "changes": changes}
    changed = _with(baseline, offered.measured, offered.better | others, gone)
    return replace(changed, accepted=[*baseline.accepted, line])


def _with(
    old: Baseline, new: Baseline, taken: dict[Key, Checkpoint], gone: Iterable[Key] = ()
) -> Baseline:
    """The old one with what is taken of the new one, and the runs that either is of."""
    checkpoints, commits = old.checkpoints | taken, dict(old.commits)
    commits |= {key: new.commits[key] for key in taken}
    for key in gone:
        del checkpoints[key], commits[key]
    measured = {commits[key] for key in taken}
    added = [run for run in new.runs if run not in old.runs and run["commit"] in measured]
    left = set(commits.values())
    runs = [run for run in old.runs if run.get("commit", "") in left] + added
    return replace(old, runs=runs, checkpoints=checkpoints, commits=commits)


def _short(key: Key) -> list[str | bool]:
    return [key.recording, key.checkpoint, key.dtype, key.fused]


def _figure(checkpoint: Checkpoint | None) -> Line | None:
    """None: there is no such checkpoint."""
    if checkpoint is None:
        return None
    return {"status": checkpoint.status, "E_T": to_json(checkpoint.error, _DIGITS)}
