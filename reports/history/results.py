"""What is kept of result files."""

from __future__ import annotations

from pathlib import Path

from .. import results
from ..reader import HINT, read_entries
from .figures import Checkpoint, Key, Output, Provenance, Run, to_json

_DIGITS = 5


def read_results(path: Path) -> list[Run]:
    """What is kept of the runs of a file, each checkpoint as soon as it is read.

    Raises as read_entries, and ValueError for a file without a checkpoint.
    """
    runs: list[_Keeper] = []
    for _, _, entry in read_entries(path, torn_end=True):
        match entry:
            case results.Header():
                runs.append(_Keeper(path, entry))
            case results.Checkpoint():
                runs[-1].add(entry)
            case results.Summary():
                runs[-1].complete = not entry.interrupted
    if not any(run.checkpoints for run in runs):
        raise ValueError(f"{path}: holds no checkpoint; {HINT}")
    return [run.kept() for run in runs]


def kept(run: results.Run) -> Run:
    """What is kept of a run. ValueError for two recordings of one name."""
    keeper = _Keeper(run.path, run.header)
    for checkpoint in run.checkpoints:
        keeper.add(checkpoint)
    keeper.complete = run.complete
    return keeper.kept()


class _Keeper:
    """A run, checkpoint by checkpoint: of each a small part of what was read."""

    def __init__(self, path: Path, header: results.Header) -> None:
        self.path, self.header, self.complete = path, header, False
        self.checkpoints: dict[Key, Checkpoint] = {}

    def add(self, checkpoint: results.Checkpoint) -> None:
        """ValueError for two recordings of one name."""
        key = self.header.key(checkpoint)
        if key in self.checkpoints:
            raise ValueError(
                f"{self.path}: {key.recording} {key.checkpoint} on {key.device} is of two folders, "
                f"one of them {checkpoint.fixture}: recordings of one name need runs of their own"
            )
        self.checkpoints[key] = _checkpoint(checkpoint)

    def kept(self) -> Run:
        header = self.header
        provenance = Provenance(
            started=header.started,
            command=header.command,
            version=header.version,
            environment=header.environment,
            devices=tuple(header.devices),
        )
        return Run(str(self.path), provenance, self.checkpoints, self.complete)


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
