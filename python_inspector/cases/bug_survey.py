"""inspector bugs: bugs planted in every call of models, and how many a judge would kill.

Each model runs in float32 and bf16; every call without a native block that is the first of its kind
(class, shapes) has bugs planted. Correct variants of the same calls must pass.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from python_inspector.errors import RecordWarning
from python_inspector.oracle.bugs import Bug
from python_inspector.oracle.judgement import Judgement
from python_inspector.oracle.planting import Rounded, chosen, listing_of, plant
from python_inspector.oracle.replay import Again, Runner, run_as_it_is, run_lifted, run_rounded
from python_inspector.oracle.reruns import Reruns
from python_inspector.oracle.resolution import Fate, fate_of
from python_inspector.oracle.sites import under
from python_inspector.oracle.variants import VARIANTS
from python_inspector.recorder.session import record
from python_inspector.taps.calls import Block

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
"""bf16 first: what survives there is also planted in float32."""

Build = Callable[[torch.dtype], torch.nn.Module]


@dataclass(frozen=True)
class Place:
    """Where a bug was planted."""

    model: str
    kind: str
    """The class of the module, or the function."""
    call: str


@dataclass
class Found:
    place: Place
    dtype: str
    bug: str
    kind: str
    margin: float
    fate: Fate

    @property
    def key(self) -> tuple[Place, str]:
        return self.place, self.bug


@dataclass
class Alarm:
    place: Place
    dtype: str
    variant: str
    output: str
    margin: float


@dataclass
class Survey:
    found: list[Found] = field(default_factory=list)
    same_bits: int = 0
    broken: int = 0
    judged: int = 0
    """Outputs of correct variants."""
    alarms: list[Alarm] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Models that did not run, and calls without limits."""
    models: list[str] = field(default_factory=list)


def survey(builds: Iterator[tuple[str, Build]], tokens: int, seed: int, most: int) -> Survey:
    """Of models by name; `most` bugs of a call."""
    result = Survey()
    for name, build in builds:
        for dtype in DTYPES:
            try:
                _Run(result, name, dtype, most).over(build(DTYPES[dtype]), tokens, seed)
            except Exception as error:
                text = str(error).strip().splitlines() or [""]
                result.failed.append(f"{name} {dtype}: {type(error).__name__}: {text[0]}")
        result.models.append(name)
    return result


class _Run:
    """One model in one dtype."""

    def __init__(self, survey: Survey, model: str, dtype: str, most: int) -> None:
        self._survey = survey
        self._model = model
        self._dtype = dtype
        self._most = most
        self._kinds: set[tuple[str, tuple[torch.Size, ...]]] = set()
        self._classes: dict[str, str] = {}
        wanted = (f for f in survey.found if f.place.model == model and f.fate is Fate.SURVIVES)
        self._wanted: dict[str, set[str]] = {}
        for found in wanted:
            self._wanted.setdefault(found.place.call, set()).add(found.bug)

    def over(self, model: torch.nn.Module, tokens: int, seed: int) -> None:
        self._classes = {path: type(m).__name__ for path, m in model.named_modules()}
        generator = torch.Generator().manual_seed(seed)
        vocabulary = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        ids = torch.randint(3, vocabulary, (2, tokens), generator=generator)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            with record(model, Path(folder) / "run") as recorder:
                recorder.on_judgement = self._judged
                with torch.no_grad():
                    model(ids, use_cache=False)

    def _judged(self, seed: str, block: Block, again: Again, reruns: Reruns) -> None:
        path, _, function = seed.rpartition("#")[0].partition(":")
        kind = function or self._classes.get(path, path)
        shapes = tuple(tensor.shape for tensor, _ in block.inputs.values())
        if path.count(".") == 0 and function in ("", "forward"):
            return  # the whole model: its parts are judged
        if (kind, shapes) in self._kinds or reruns.judgement is None:
            return
        self._kinds.add((kind, shapes))
        _Call(self._survey, Place(self._model, kind, seed), self._dtype, block, again, reruns).over(
            self._most, self._wanted.get(seed, set())
        )


@dataclass
class _Call:
    survey: Survey
    place: Place
    dtype: str
    block: Block
    again: Again
    reruns: Reruns

    def __post_init__(self) -> None:
        assert self.reruns.judgement is not None
        self.judgement: Judgement = self.reruns.judgement
        given = self.reruns.given
        fixed = given is not None and bool(given.opaque or given.kept)
        self.rounded: Rounded = (
            functools.partial(run_rounded, given=given) if fixed else run_rounded
        )
        self.lifted: Runner = run_lifted

    def over(self, most: int, wanted: set[str]) -> None:
        gates, seed = self.judgement.gates, self.place.call
        if not gates:
            return
        bugs = listing_of(self.again, seed, self.rounded).bugs
        picked = chosen(bugs, most, seed)
        names = {bug.name for bug in picked}
        picked += [bug for bug in bugs if bug.name in wanted - names]
        planted = plant(
            self.again, self.block.outputs, gates, seed, picked, self.rounded, self.reruns.undecided
        )
        self.survey.same_bits += len(planted.same)
        self.survey.broken += len(planted.broken)
        for found in planted.planted:
            fate = Fate.KILLED if found.margin > 1 else self._fate(found.bug)
            self.survey.found.append(
                Found(self.place, self.dtype, found.name, found.bug.kind, found.margin, fate)
            )
        self._variants()

    def _fate(self, bug: Bug) -> Fate:
        return fate_of(
            bug,
            self.again,
            self.block.outputs,
            self.judgement.gates,
            self.lifted,
            self.rounded,
            self.place.call,
        )

    def _variants(self) -> None:
        """Each correct variant beside the limits."""
        for variant, mode in VARIANTS.items():
            rerun = self.again(under(run_as_it_is, mode))
            named = self.block.outputs(rerun.result, rerun.twin)
            for name, gates in self.judgement.gates.items():
                margin = gates.margin(named[name][0])
                self.survey.judged += 1
                if margin > 1:
                    alarm = Alarm(self.place, self.dtype, variant, name, margin)
                    self.survey.alarms.append(alarm)
