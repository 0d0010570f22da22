"""The further calls of one kernel on one case, compared with the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..format.operands import Output, output_of
from ..recorder.one_call import Observed
from ..recorder.tensors_of_outputs import as_tensor
from ..taps.generic import tensors_of
from .calling import Kernel, Run
from .compared import difference, put
from .inputs import Case
from .relations import BITS, LIMITS, OF_A_DEVICE, WHOLE, Asked, Variation, variations
from .rows import rows_of, varied
from .sealed import Replayed
from .streams import device_with_graphs, device_with_streams, in_a_graph, on_another_stream

if TYPE_CHECKING:
    from .verdict import Verdict

Judge = Callable[[Mapping[str, Output]], "Verdict"]
"""On outputs of the whole call."""


@dataclass
class Tried:
    """What came of one relation."""

    relation: str
    demand: str
    rows: str = ""
    """Of which operands."""
    why_not: str = ""
    """Why it was not tried."""
    calls: int = 0
    differing: int = 0
    """Calls with other bits."""
    fault: str = ""
    """What is wrong first."""
    output: str = ""
    """Where, and in how many elements."""
    where: str = ""
    elements: int = 0
    not_by_row: set[str] = field(default_factory=set)
    """Outputs without rows."""


class Trial:
    """One case, of which `base` is the first call."""

    def __init__(
        self, kernel: Kernel, observed: Observed, case: Case, base: Run, asked: Asked
    ) -> None:
        self._kernel, self._observed, self._case = kernel, observed, case
        own = {k: v for k, v in observed.arguments.items() if k not in case.weights}
        self._asked = asked
        self._rows = rows_of(own, asked.batch)
        self._base = {name: as_tensor(it) for name, it in base.outputs.items()}
        self._axes = {
            name: self._rows.of(name, t.shape, asked.batch) for name, t in self._base.items()
        }
        tensors = list(tensors_of(own, lambda value: value).values())
        is_called = kernel.arrays == "torch" and not isinstance(kernel.function, Replayed)
        found = {"stream": device_with_streams(tensors), "graph": device_with_graphs(tensors)}
        self._devices = {name: it for name, it in found.items() if is_called and it is not None}
        self.planned = self._rows.planned(asked, on_device=self._devices)

    def outcome(self, judge: Judge | None = None, first: int = 0) -> list[Tried]:
        """Of each relation. `judge` says whether outputs are within limits; `first` is, of a sealed
        kernel, which of its calls is the first one planned."""
        found = {
            name: Tried(name, demand, str(self._rows), self._why_not(name))
            for name, demand in self._asked.demands.items()
            if name != "ragged" or self._rows.sequences or len(self._asked.demands) == 1
        }
        for number, it in enumerate(self.planned, first):
            tried = found[it.relation]
            if not tried.why_not and not (tried.fault and not tried.differing):
                self._compare(tried, it, number, judge)
        return list(found.values())

    def again(self) -> Tried:
        """The same call once more."""
        tried = Tried("repeat", BITS)
        self._compare(tried, variations("repeat", 0)[0], 0, None)
        return tried

    def _why_not(self, relation: str) -> str:
        if relation in OF_A_DEVICE and relation not in self._devices:
            return f"the kernel is given no torch tensor of a device with {relation}s"
        if relation in WHOLE:
            return ""
        if relation == "ragged" and not self._rows.sequences:
            return "no operand has offsets of sequences (cu_seqlens)"
        if self._rows.why:
            return f"{self._rows.why}; batch= names one"
        if not any(axis is not None for axis in self._axes.values()):
            return f"no output has the {self._rows.count} rows of {self._rows}"
        planned = any(it.relation == relation for it in self.planned)
        return "" if planned else f"{self._rows} has one row"

    def _compare(
        self, tried: Tried, variation: Variation, number: int, judge: Judge | None
    ) -> None:
        """Makes the call, and adds to `tried` what differs."""
        tried.calls += 1
        run, fault = self._run(variation, number)
        if fault:
            tried.fault = tried.fault or f"{fault}, {variation.words}"
        if run is None:
            return
        tried.not_by_row |= {n for n in self._base if not self._is_compared(n, variation)}
        found = [name for name in self._base if self._differs(tried, name, run, variation)]
        tried.differing += bool(found)
        if found and judge is not None and tried.demand == LIMITS and not tried.fault:
            verdict = judge(self._assembled(run, variation))
            if verdict.status == "fail":
                tried.fault = f"{verdict.reason}, {variation.words}"

    def _is_compared(self, output: str, variation: Variation) -> bool:
        return not variation.source or self._axes[output] is not None

    def _axis(self, output: str, variation: Variation) -> int | None:
        return self._axes[output] if variation.source else None

    def _along(self, output: str, variation: Variation) -> Variation:
        axis = self._axis(output, variation)
        extent = None if axis is None else self._base[output].shape[axis]
        return variation if extent is None else self._rows.along(extent, variation)

    def _run(self, variation: Variation, number: int) -> tuple[Run | None, str]:
        """The varied call, and what is wrong with it apart from its bits."""
        kernel, bound = self._kernel, self._observed.arguments
        arguments, bound = varied(self._case.arguments, bound, self._rows, variation)
        if isinstance(kernel.function, Replayed):
            kernel = replace(kernel, function=kernel.function.of(number, number + 1))
        elif (device := self._devices.get(variation.relation)) is not None:
            called = on_another_stream if variation.relation == "stream" else in_a_graph
            kernel = replace(kernel, function=called(kernel.function, device))
        try:
            observed = replace(self._observed, arguments=bound)
            run = kernel.run(observed, replace(self._case, arguments=arguments))
        except Exception as error:  # whatever it is: the first call did not raise it
            return None, f"the function raised {type(error).__name__}: {error}"
        return run, "; ".join(run.faults)

    def _differs(self, tried: Tried, name: str, run: Run, variation: Variation) -> bool:
        if not self._is_compared(name, variation):
            return False
        axis = self._axis(name, variation)
        other = as_tensor(run.outputs[name]) if name in run.outputs else None
        found = difference(self._base[name], other, axis, self._along(name, variation))
        if found is None:
            return False
        count, where, words = found
        if not tried.output:
            tried.output, tried.elements, tried.where = name, count, where
        if tried.demand != LIMITS or not where:
            tried.fault = tried.fault or f"{name} {words}"
        return True

    def _assembled(self, run: Run, variation: Variation) -> dict[str, Output]:
        """The outputs of the whole call, with the rows of the varied one in their places."""
        out = {}
        for name, base in self._base.items():
            made = base.clone()
            if self._is_compared(name, variation):
                axis = self._axis(name, variation)
                along = self._along(name, variation)
                made = put(made, as_tensor(run.outputs[name]), axis, along)
            out[name] = output_of(made)
        return out
