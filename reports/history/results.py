"""Reads the files of `harness --json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reports.history.figures import (
    Checkpoint,
    Key,
    Output,
    Provenance,
    Run,
    number,
    text,
    texts,
    to_json,
)
from reports.json_lines import Line, json_lines

SCHEMA = 1
_HINT = "write it with harness --json FILE"


def read_results(path: Path) -> list[Run]:
    """The runs of a file, of which several may have been joined into one.

    A run that was cut short keeps what is complete. Raises OSError, and ValueError naming file and
    line for what is no such file.
    """
    runs: list[Run] = []
    found: dict[Key, Checkpoint] = {}
    for place, line in json_lines(path, torn_end=True):
        try:
            if line["type"] == "run":
                found = {}
                runs.append(Run(str(path), _provenance(line), found, complete=False))
            elif line["type"] == "checkpoint":
                _add(runs, found, line)
            elif line["type"] == "summary" and runs:
                runs[-1] = replace(runs[-1], complete=not line["interrupted"])
        except KeyError as error:
            raise ValueError(f"{place}: lacks {error}; {_HINT}") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{place}: no result of harness --json: {error}") from error
    if not any(run.checkpoints for run in runs):
        what = "checkpoint" if runs else "run line"
        raise ValueError(f"{path}: holds no {what}; {_HINT}")
    return runs


def _provenance(line: Line) -> Provenance:
    if line["schema"] != SCHEMA:
        raise ValueError(
            f"results of schema {line['schema']}, this program reads {SCHEMA}; "
            "use the reports that came with the harness"
        )
    return Provenance(
        started=text(line["started"]),
        command=text(line["command"]),
        version=text(line["version"]),
        environment={text(name): text(value) for name, value in line["environment"].items()},
        devices=texts(line["devices"]),
    )


def _add(runs: list[Run], found: dict[Key, Checkpoint], line: Line) -> None:
    if not runs:
        raise ValueError("a checkpoint before any run line")
    fused = "--no-fuse" not in runs[-1].provenance.command.split()
    recording, checkpoint = text(line["recording"]), text(line["checkpoint"])
    key = Key(recording, checkpoint, text(line["device"]), text(line["dtype"]), fused)
    if key in found:
        raise ValueError(
            f"{key.recording} {key.checkpoint} on {key.device} is there twice in one run"
        )
    found[key] = Checkpoint(
        block=text(line["block"]),
        status=text(line["status"]),
        contract=text(line["contract"]),
        impl=texts(line["impl"]),
        outputs={text(output["name"]): _output(output) for output in line["outputs"]},
        bits=text(line["output_sha256"]),
        golden=text(line["golden_sha256"]),
        blind_to=texts(line.get("blind_to", [])),
    )


def _output(line: Line) -> Output:
    statistics = line["statistics"]
    conformance = line["conformance"]
    return Output(
        error=number(statistics["E_T"]),
        element=number(statistics["M_E"]),
        gain=number(statistics["gain"]),
        families={text(f["family"]): number(f["value"]) for f in statistics["families"]},
        octaves=tuple(int(number(count)) for count in line["informative"]["octaves"]),
        differing=int(number(conformance["differ"])) if conformance else None,
        details={
            "margins": {gate["name"]: to_json(_margin(gate), 5) for gate in line["gates"]},
            "worst": _worst_groups(line),
            "values": {n: v["value"] for n, v in line["informative"]["values"].items()},
            "ulps": line["informative"]["ulps"],
        },
    )


def _margin(gate: Line) -> float:
    """The statistic over its limit: above 1 it fails. 0 allowed and met: 0."""
    statistic, limit = abs(number(gate["statistic"])), number(gate["limit"])
    if limit:
        return statistic / limit
    return 0.0 if statistic == 0 else float("inf")


def _worst_groups(line: Line) -> dict[str, str]:
    """The worst group of each family in words."""
    worst: dict[str, str] = {}
    for group in line["informative"]["worst_groups"]:
        worst.setdefault(text(group["family"]), text(group["group"]))
    return worst
