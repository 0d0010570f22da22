"""On what a run's arithmetic depends besides the code: the instruction set, or the GPU.

Sums on another one are made in another order: errors differ by chance, and a larger one is no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .figures import Run

_INSTRUCTION_SETS = (
    "baseline", "sse2", "avx2", "avx512", "avx512_bf16", "amx_bf16", "neon", "sve",
)  # fmt: skip
_CAPABILITY = "compute capability "


@dataclass(frozen=True)
class Moved:
    """A device whose two sides are of other machines."""

    device: str
    what: str  # "instruction set", "device"
    old: str
    new: str

    @property
    def words(self) -> str:
        """Why figures on the device are not comparable."""
        return (
            f"another {self.what}: {self.device} of the older side is of {self.old}, of the newer "
            f"of {self.new}, where rounding differs"
        )


def moved(old: Iterable[Run], new: Iterable[Run]) -> dict[str, Moved]:
    """The devices on which no run of one side is of a machine that the other side knows.

    What a run does not say of its machine is taken for the same.
    """
    before, now = _machines(old), _machines(new)
    found = {}
    for device in before.keys() & now.keys():
        if before[device].keys().isdisjoint(now[device]):
            (one, what), (other, _) = (max(side[device].items()) for side in (before, now))
            found[device] = Moved(device, what, one, other)
    return found


def _machines(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """By device: the machines that runs were on, and what kind of thing tells them apart."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        for device, (machine, what) in _of(run.provenance.devices).items():
            found.setdefault(device, {})[machine] = what
    return found


def _of(devices: Iterable[str]) -> Mapping[str, tuple[str, str]]:
    """From "cpu: AMD EPYC, avx2, 2 threads": the instruction set; of a GPU its name."""
    found = {}
    for words in devices:
        device, _, description = words.partition(": ")
        parts = [part.strip() for part in description.split(",")]
        sets = [part for part in parts if part in _INSTRUCTION_SETS]
        if device.partition(":")[0] in ("cuda", "hip") and parts[0]:
            ability = [part for part in parts if part.startswith(_CAPABILITY)]
            found[device] = (", ".join([parts[0], *ability]), "device")
        elif sets:
            found[device] = (sets[0], "instruction set")
    return found
