"""inspector bugs: bugs planted in every call of models, and how many a judge would kill.

Each model runs in float32 and bf16; every call without a native block that is the first of its kind
(class, shapes) has bugs planted. Correct variants of the same calls must pass.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import interrupts
from ..errors import RecordWarning
from ..models.any_tiny import build_any
from ..recorder.alternatives import rounded_of
from ..recorder.session import record
from ..taps.calls import Block
from ..trace.bugs import Bug
from ..trace.judgement import Judgement
from ..trace.planting import Rounded, chosen, listing_of, plant
from ..trace.replay import Again, Runner, run_as_it_is, run_lifted
from ..trace.reruns import Reruns
from ..trace.resolution import Fate, fate_of
from ..trace.sites import under
from ..trace.variants import VARIANTS, run_in_float32, sdpa_for_eager

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
"""bf16 first: what survives there is also planted in float32."""


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
    """Of one model."""

    model: str
    found: list[Found] = field(default_factory=list)
    same_bits: int = 0
    broken: int = 0
    judged: int = 0
    """Outputs of correct variants."""
    alarms: list[Alarm] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Dtypes in which it did not run."""

    def to_json(self) -> str:
        def plain(value: Any) -> Any:
            return value.value if isinstance(value, Fate) else vars(value)

        return json.dumps(self, default=plain)

    @staticmethod
    def from_json(text: str) -> Survey:
        plain = json.loads(text)
        found, alarms = plain.pop("found"), plain.pop("alarms")
        survey = Survey(**plain)
        for item in found:
            place, fate = Place(**item.pop("place")), Fate(item.pop("fate"))
            survey.found.append(Found(place=place, fate=fate, **item))
        for item in alarms:
            survey.alarms.append(Alarm(place=Place(**item.pop("place")), **item))
        return survey


def survey(model_type: str, tokens: int, seed: int, most: int) -> Survey:
    """Of a tiny model; `most` bugs of a call."""
    result = Survey(model_type)
    for dtype, torch_dtype in DTYPES.items():
        try:
            model = build_any(model_type, torch_dtype, "eager", seed)
            _Run(result, model_type, dtype, most).over(model, tokens, seed)
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            result.failed.append(f"{dtype}: {type(error).__name__}: {text[0]}")
    return result


def surveys(
    model_types: Sequence[str], tokens: int, seed: int, most: int, kept: Path | None
) -> Iterator[Survey]:
    """Of each model; what is in the folder `kept` is not made again."""
    for model_type in model_types:
        path = None if kept is None else kept / f"{model_type}-{tokens}-{seed}-{most}.json"
        if path is not None and path.exists():
            yield Survey.from_json(path.read_text())
            continue
        made = survey(model_type, tokens, seed, most)
        interrupts.check()  # it may have become one of the failures
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made.to_json())
        yield made


class _Run:
    """One model in one dtype."""

    def __init__(self, survey: Survey, model: str, dtype: str, most: int) -> None:
        self._survey = survey
        self._model = model
        self._dtype = dtype
        self._most = most
        self._kinds: set[tuple[str, tuple[torch.Size, ...]]] = set()
        self._modules: dict[str, torch.nn.Module] = {}
        self._wanted: dict[str, set[str]] = {}
        for found in survey.found:
            if found.fate is Fate.SURVIVES:
                self._wanted.setdefault(found.place.call, set()).add(found.bug)

    def over(self, model: torch.nn.Module, tokens: int, seed: int) -> None:
        self._modules = dict(model.named_modules())
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
        kind = function or type(self._modules.get(path)).__name__
        shapes = tuple(tensor.shape for tensor, _ in block.inputs.values())
        if path.count(".") == 0 and function in ("", "forward"):
            return  # the whole model: its parts are judged
        if (kind, shapes) in self._kinds or reruns.judgement is None:
            return
        self._kinds.add((kind, shapes))
        place = Place(self._model, kind, seed)
        module = None if function else self._modules.get(path)
        call = _Call(self._survey, place, self._dtype, block, again, reruns, module)
        call.over(self._most, self._wanted.get(seed, set()))


@dataclass
class _Call:
    survey: Survey
    place: Place
    dtype: str
    block: Block
    again: Again
    reruns: Reruns
    module: torch.nn.Module | None
    """Whose call it is; None for a function."""

    def __post_init__(self) -> None:
        assert self.reruns.judgement is not None
        self.judgement: Judgement = self.reruns.judgement
        self.rounded: Rounded = rounded_of(self.reruns)[1]
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
        """Compares each correct variant with the limits."""
        for variant, mode in VARIANTS.items():
            self._variant(variant, under(run_as_it_is, mode))
        if self.dtype == "bf16":
            self._variant("float32 inside", run_in_float32)
        if self.module is not None and self.place.kind.endswith("Attention"):
            with sdpa_for_eager(self.module) as other:
                if other:
                    self._variant("sdpa for eager", run_as_it_is)

    def _variant(self, variant: str, runner: Runner) -> None:
        try:
            rerun = self.again(runner)
            named = self.block.outputs(rerun.result, rerun.twin)
        except (KeyError, RuntimeError):
            return  # a cache among its operands, which this variant does not copy
        for name, gates in self.judgement.gates.items():
            if name not in named and name == "out.0":
                name = "out"  # fused attention has no weights to return
            if name not in named or named[name][0].shape != gates.r.shape:
                continue
            margin = gates.margin(named[name][0].to(gates.r.dtype))
            self.survey.judged += 1
            if margin > 1:
                self.survey.alarms.append(Alarm(self.place, self.dtype, variant, name, margin))
