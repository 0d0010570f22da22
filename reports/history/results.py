"""What is kept of result files."""

from __future__ import annotations

from pathlib import Path

from reports import results
from reports.history.figures import Checkpoint, Key, Output, Provenance, Run, to_json
from reports.reader import HINT, read_runs

_DIGITS = 5


def read_results(path: Path) -> list[Run]:
    """What is kept of the runs of a file. Raises as read_runs, and for one without a checkpoint."""
    runs = [kept(run) for run in read_runs([path])]
    if not any(run.checkpoints for run in runs):
        raise ValueError(f"{path}: holds no checkpoint; {HINT}")
    return runs


def kept(run: results.Run) -> Run:
    """What is kept of a run. ValueError for two recordings of one name."""
    header = run.header
    provenance = Provenance(
        started=header.started,
        command=header.command,
        version=header.version,
        environment=header.environment,
        devices=tuple(header.devices),
    )
    found: dict[Key, Checkpoint] = {}
    for checkpoint in run.checkpoints:
        key = header.key(checkpoint)
        if key in found:
            raise ValueError(
                f"{run.path}: {key.recording} {key.checkpoint} on {key.device} is of two folders, "
                f"one of them {checkpoint.fixture}: recordings of one name need runs of their own"
            )
        found[key] = _checkpoint(checkpoint)
    return Run(str(run.path), provenance, found, run.complete)


def _checkpoint(checkpoint: results.Checkpoint) -> Checkpoint:
    return Checkpoint(
        block=checkpoint.block,
        status=checkpoint.status,
        contract=checkpoint.contract,
        impl=tuple(checkpoint.impl),
        outputs={output.name: _output(output) for output in checkpoint.outputs},
        bits=checkpoint.output_sha256,
        golden=checkpoint.golden_sha256,
        blind_to=tuple(checkpoint.blind_to),
        determinism=checkpoint.determinism,
        margins=checkpoint.margins,
    )


def _output(output: results.Output) -> Output:
    statistics, informative = output.statistics, output.informative
    worst: dict[str, str] = {}
    for group in informative.worst_groups:
        worst.setdefault(group.family, group.group)
    return Output(
        error=statistics.error,
        element=statistics.element,
        gain=statistics.gain,
        families={family.family: family.value for family in statistics.families},
        octaves=tuple(informative.octaves),
        differing=output.conformance.differ if output.conformance else None,
        details={
            "margins": {gate.name: to_json(gate.ratio, _DIGITS) for gate in output.gates},
            "worst": worst,
            "values": {name: to_json(it.value) for name, it in informative.values.items()},
            "ulps": informative.ulps,
        },
    )
