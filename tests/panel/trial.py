"""One recording of the panel: recorded, verified on every device, and what failed of it; of one
with rows also which edits of it are not noticed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from python_inspector import RecordError, record
from python_inspector.errors import FormatError
from python_inspector.models.inputs import run_model
from python_inspector.recorder.where import Where
from python_inspector.taps.options import Proof, What
from tests.panel.draw import Draw, draw
from tests.panel.edits import edits_of

HARMLESS = ("pass", "blind", "unsupported")
_TOO_LONG = 900.0


@dataclass(frozen=True)
class Alarm:
    """A checkpoint or chain of correct code that failed."""

    device: str
    fused: bool
    block: str
    dtype: str
    gate: str
    """The one that is beyond its limit by most; where there is none, the status."""
    excess: float
    """Statistic over limit of that gate."""
    checkpoint: str
    reason: str
    again: str


@dataclass
class Trial:
    """What became of one recording."""

    index: int
    about: str
    dtype: str
    skipped: str = ""
    """Why the recorder refused the model."""
    broken: str = ""
    """What went wrong that is no verdict: the recorder or the harness broke down."""
    judged: int = 0
    """Checkpoints with a verdict, on all devices."""
    chains: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    edits: int = 0
    survived: list[str] = field(default_factory=list)
    """Edits of the recording that nothing failed of."""

    @property
    def is_clean(self) -> bool:
        return not (self.alarms or self.broken or self.survived)


@dataclass(frozen=True)
class Panel:
    """What all trials of a run share."""

    seed: int
    harness: Path
    devices: tuple[str, ...]
    """`emu` is an emulated GPU, of 32 or 64 threads to a sub-group as is drawn."""
    folder: Path
    rows: int | None = None
    """Record only so many tokens of a call; then recordings are also edited."""
    record_on: str = "cpu"
    """Where models run and are recorded."""

    def ways(self, drawn: Draw) -> list[tuple[str, ...]]:
        """The harness's options, a list for each run. Fused ops run as their parts, too, except on
        the emulated GPU, where that takes as long again and runs the same kernels. What was
        recorded in 16 bits runs in float32, too: its kernels are others."""
        out: list[tuple[str, ...]] = []
        for device in self.devices:
            name = drawn.emulator if device == "emu" else device
            out.append(("--device", name))
            if name.startswith("emu"):
                continue
            out.append(("--device", name, "--no-fuse"))
            if drawn.dtype != "f32":
                out.append(("--device", name, "--dtype", "f32"))
        return out


def prepare() -> None:
    """Once in every process."""
    from transformers.utils import logging

    torch.set_num_threads(1)  # tiny operations: threads only get in each other's way
    logging.set_verbosity_error()


def run_trial(panel: Panel, index: int) -> Trial:
    """Records the draw and verifies it; the recording stays where something failed."""
    drawn = draw(panel.seed, index, trained=True)
    folder = panel.folder / f"{panel.seed}" / f"{index}"
    trial = Trial(index, drawn.about(), drawn.dtype)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _record(drawn, folder, panel.rows, panel.record_on)
    except (RecordError, FormatError) as error:
        trial.skipped = " ".join(str(error).split())
        return trial
    except Exception as error:  # of transformers or our own: the panel continues
        trial.broken = f"recording: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return trial
    for way in panel.ways(drawn):
        is_chained = drawn.chained and panel.rows is None
        if is_chained and "--dtype" not in way:  # the chained oracle is one of the dtype's
            way = (*way, "--mode", "both")
        _verify(trial, panel.harness, folder, way)
    if panel.rows is not None and trial.is_clean:
        _edit(trial, panel, folder)
    if trial.is_clean:
        shutil.rmtree(folder)
    return trial


def _record(drawn: Draw, folder: Path, rows: int | None, device: str) -> None:
    model = drawn.model().to(torch.device(device))
    chained, seed = drawn.chained and rows is None, drawn.weight_seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with record(model, Where(folder, seed=seed), What(rows=rows), Proof(chained=chained)):
            run_model(model, drawn.plan())


def _edit(trial: Trial, panel: Panel, folder: Path) -> None:
    """Each edit must be seen on the first device."""
    file = folder / "recording.json"
    text = file.read_text()
    for edit, edited in edits_of(text):
        file.write_text(edited)
        trial.edits += 1
        lines = _run(trial, panel.harness, folder, ("--device", panel.devices[0]))
        if all(line["status"] in HARMLESS for line in lines):
            trial.survived.append(edit)
    file.write_text(text)


def _verify(trial: Trial, harness: Path, folder: Path, way: tuple[str, ...]) -> None:
    for line in _run(trial, harness, folder, way):
        trial.statuses[line["status"]] = trial.statuses.get(line["status"], 0) + 1
        is_chain = line["chain"] is not None
        trial.chains += is_chain
        trial.judged += not is_chain
        if line["status"] not in HARMLESS:
            trial.alarms.append(_alarm(line, fused="--no-fuse" not in way))


def _run(trial: Trial, harness: Path, folder: Path, way: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the harness says of each checkpoint; nothing where it broke down."""
    results = folder.with_suffix(".jsonl")
    command = [str(harness), "--fixture", str(folder), *way, "--threads", "1"]
    done = subprocess.run(
        [*command, "--json", str(results)], capture_output=True, text=True, timeout=_TOO_LONG
    )
    lines = [json.loads(line) for line in results.read_text().splitlines()] if done.stdout else []
    results.unlink(missing_ok=True)
    if not any(line["type"] == "summary" for line in lines):
        words = " ".join(done.stderr.split())[-300:]
        trial.broken = f"{shlex.join(command)} ended with {done.returncode}: {words}"
        return []
    return [line for line in lines if line["type"] == "checkpoint"]


def _alarm(line: dict[str, Any], *, fused: bool) -> Alarm:
    gate, excess = line["status"], float("nan")
    for output in line["outputs"]:
        for found in output["gates"]:
            ratio = _ratio(float(found["statistic"]), float(found["limit"]))
            if not found["passed"] and not ratio <= excess:
                gate, excess = found["name"], ratio
    return Alarm(
        line["device"],
        fused,
        line["block"],
        line["dtype"],
        gate,
        excess,
        line["checkpoint"],
        line["reason"],
        line["again"],
    )


def _ratio(statistic: float, limit: float) -> float:
    return statistic / limit if limit else float("inf")
