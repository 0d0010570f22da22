"""What result files of `harness --json` hold, typed: harness/results.schema.json describes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

# From the most to the least severe; only the last three are no failures.
STATUSES = (
    "internal_error", "device_error", "timeout", "bad_input", "fail", "nondeterministic",
    "unsupported", "blind", "pass",
)  # fmt: skip
NO_FAILURES = ("unsupported", "blind", "pass")


class Key(NamedTuple):
    """What makes two checkpoints of two runs the same."""

    recording: str
    checkpoint: str
    device: str
    dtype: str
    fused: bool  # False: the run's --no-fuse


def over(statistic: float, limit: float) -> float:
    """statistic / limit as a share of what is allowed: 0/0 = 0, x/0 = inf."""
    if limit == 0:
        return 0.0 if statistic == 0 else math.inf
    return statistic / limit


@dataclass(frozen=True, slots=True)
class Gate:
    """A statistic and its limit."""

    name: str
    statistic: float
    limit: float
    derivation: dict[str, float]
    passed: bool
    where: str

    @property
    def ratio(self) -> float:
        """Share of the limit that is used; infinite for a statistic that is not a number."""
        ratio = over(self.statistic, self.limit)
        return math.inf if math.isnan(ratio) else ratio


@dataclass(frozen=True, slots=True)
class Family:
    """The largest error of a family of groups."""

    family: str
    value: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """An output's error against the float64 oracle."""

    error: float = field(metadata={"key": "E_T"})
    element: float = field(metadata={"key": "M_E"})
    gain: float
    families: list[Family]


@dataclass(frozen=True, slots=True)
class WorstGroup:
    """One of the five worst groups of a family."""

    family: str
    group: str
    value: float


@dataclass(frozen=True, slots=True)
class Extreme:
    """A value of an output that is worth knowing, such as the largest."""

    value: float


@dataclass(frozen=True, slots=True)
class Informative:
    """Figures that decide nothing."""

    values: dict[str, Extreme]
    octaves: list[int]
    ulps: list[int]
    worst_groups: list[WorstGroup]


@dataclass(frozen=True, slots=True)
class Conformance:
    """Bits compared with those of the contract's rounded model."""

    n: int
    differ: int
    limit: float


@dataclass(frozen=True, slots=True)
class ErrorMap:
    """Energy of an error along one axis."""

    name: str
    energy: list[float]


@dataclass(frozen=True, slots=True)
class Picture:
    """An error over rows and columns, in bands of them."""

    row_axes: str
    column_axes: str
    rows: int  # of the output
    columns: int
    cells: list[str]  # a hexadecimal digit each: f is the largest, one less is half of that

    @property
    def levels(self) -> list[list[int]]:
        """The digits' values; empty where these are no lines of such digits of one length."""
        try:
            found = [[int(digit, 16) for digit in line] for line in self.cells]
        except ValueError:
            return []
        return found if found and len({len(line) for line in found}) == 1 else []


@dataclass(frozen=True, slots=True)
class Where:
    """Where the error of a failure is."""

    region: str
    share: float
    worst: str
    maps: list[ErrorMap]
    picture: Picture | None = None  # older harnesses drew none


@dataclass(frozen=True, slots=True)
class Output:
    """One output tensor."""

    name: str
    status: str
    gates: list[Gate]
    statistics: Statistics
    recorded_error: float
    informative: Informative
    conformance: Conformance | None
    where: Where | None


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One output of one checkpoint in a chain."""

    checkpoint: str
    block: str
    output: str
    step: int
    isolated: float
    isolated_limit: float
    inherited: float
    chained: float
    chained_limit: float
    reference: float
    forecast: float
    diagnosis: str


@dataclass(frozen=True, slots=True)
class Chain:
    """A whole model, run from its ids."""

    first_divergence: str | None
    onset: str | None
    culprit: str | None
    rows: list[ChainRow]


@dataclass(frozen=True, slots=True)
class KnownBug:
    """What a failure is: the block with this bug instead of the right one explains it."""

    bug: str
    differ: float  # share of the 16-bit elements whose bits are not that block's; NaN: no such
    ratio: float  # the largest statistic over its limit against that block
    rounds: str = ""  # where that block rounds; "": as the contract says


class Judged:
    """What follows from a checkpoint's status."""

    __slots__ = ()

    status: str
    determinism: str

    @property
    def failed(self) -> bool:
        """Whether it is a failure, of whatever kind."""
        return self.status not in NO_FAILURES

    @property
    def loose(self) -> bool:
        """Whether its runs are known to differ."""
        return self.determinism == "D1" or self.status == "nondeterministic"


@dataclass(frozen=True, slots=True)
class Placed(Judged):
    """Which checkpoint it is, on which device, without what was found."""

    status: str
    block: str
    checkpoint: str
    recording: str
    fixture: str
    device: str
    dtype: str
    golden_sha256: str

    @property
    def words(self) -> str:
        """It in a message."""
        return f"{self.recording} {self.checkpoint} on {self.device}"


@dataclass(frozen=True, slots=True)
class Checkpoint(Placed):
    """One checkpoint on one device."""

    contract: str
    looser_contracts: list[str]
    impl: list[str]
    reason: str
    details: list[str]
    outputs: list[Output]
    features: list[str]
    blind_to: list[str]
    output_sha256: str
    seconds: float
    chain: Chain | None
    again: str
    # Older harnesses did not have these.
    determinism: str = ""
    margins: dict[str, float] | None = None  # of known bugs
    passing_bugs: list[str] | None = None  # of them
    diagnosis: str = ""  # which roundings a failure's bits follow
    known_bug: KnownBug | None = None

    @property
    def gates(self) -> Iterator[tuple[Output, Gate]]:
        """Every gate with its output."""
        return ((output, gate) for output in self.outputs for gate in output.gates)

    @property
    def worst(self) -> tuple[Output, Gate] | None:
        """The gate nearest to its limit or farthest beyond it."""
        return max(self.gates, key=lambda pair: (not pair[1].passed, pair[1].ratio), default=None)

    @property
    def ratio(self) -> float:
        """The share of its limit that the worst gate uses; NaN where nothing was judged."""
        worst = self.worst
        return worst[1].ratio if worst else math.nan


@dataclass(frozen=True)
class Comparison:
    """One checkpoint on several devices."""

    finding: str
    words: str
    block: str
    checkpoint: str
    recording: str


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    checkpoints: int
    interrupted: str
    exit_code: int
    verdict: str
    seconds: float


@dataclass(frozen=True)
class Header:
    """What ran, and where."""

    version: str
    command: str
    started: str
    environment: dict[str, str]
    devices: list[str]
    request: dict[str, str] = field(default_factory=dict)  # options and what they selected

    @cached_property
    def fused(self) -> bool:
        """Whether fused kernels were allowed."""
        return "--no-fuse" not in self.command.split()

    def key(self, checkpoint: Placed) -> Key:
        """Of one of the run's checkpoints."""
        c = checkpoint
        return Key(c.recording, c.checkpoint, c.device, c.dtype, self.fused)


@dataclass
class Run:
    """One run of the harness; without a summary it was cut short."""

    path: Path
    header: Header
    checkpoints: list[Checkpoint] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    summary: Summary | None = None

    @property
    def complete(self) -> bool:
        """Whether it came to its end."""
        return self.summary is not None and not self.summary.interrupted

    @property
    def notice(self) -> str:
        """What is missing from it, in words; empty for a complete run."""
        count = f"{len(self.checkpoints):,} checkpoints"
        if self.summary is None:
            return (
                f"{self.path.name} was cut short: it holds {count} and no summary. What it holds "
                f"is shown; what the run had not judged is not."
            )
        if self.summary.interrupted:
            return (
                f"{self.path.name}: {self.summary.interrupted} ended the run early, after {count}."
            )
        return ""
