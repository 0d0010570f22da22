"""The recording, version 2, as Python values: what fixtures/README.md says in words.

Nothing here touches a file. `writer` writes these values, `validate` checks what was written, and
the recorder only ever builds them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

from ..errors import FormatError

FORMAT = "plumbline-recording"
VERSION, LATEST = 2, 3
"""What is written; the second where there are gradients, or codes of quantised weights."""
BACKWARD = "backward"

MODES = ("whole", "decode", "chunked", "padded", "padded-decode")
AXES = (
    "batch", "token", "kv_token", "head", "kv_head",
    "head_dim", "channel", "vocab", "group", "state",
)  # fmt: skip

# safetensors writes a dtype in capitals.
ITEM_SIZES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1,
    "i8": 1, "f8_e4m3": 1, "f8_e5m2": 1,
}  # fmt: skip
CODES = ("i8", "f8_e4m3", "f8_e5m2")
"""Of quantised weights alone: of version 3."""
if TYPE_CHECKING:
    DTYPES: dict[torch.dtype, str]
    TORCH_DTYPES: dict[str, torch.dtype]
else:

    def __getattr__(name: str) -> Any:
        """torch's dtypes are made on first use: verify() with NumPy goes without torch."""
        if name == "DTYPES":
            return _dtypes()
        if name == "TORCH_DTYPES":
            return _torch_dtypes()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _dtypes() -> dict[torch.dtype, str]:
    return {dtype: name for name, dtype in _torch_dtypes().items()}


@functools.cache
def _torch_dtypes() -> dict[str, torch.dtype]:
    import torch

    return {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "i64": torch.int64,
        "i32": torch.int32,
        "u8": torch.uint8,
        "bool": torch.bool,
        "i8": torch.int8,
        "f8_e4m3": torch.float8_e4m3fn,
        "f8_e5m2": torch.float8_e5m2,
    }


MAIN_INPUTS = {
    "decoder_layer": "hidden", "mamba_layer": "hidden", "hybrid_layer": "hidden",
    "rms_norm": "x", "lm_head": "hidden",
}  # fmt: skip
"""The input of a chained block that comes from the chained block before it."""
_STATES_AFTER = {
    "kv_cache": ("keys_after", "values_after"),
    "static_kv_cache": ("keys_after", "values_after"),
    "causal_conv1d": ("state_after",),
    "ssd_scan": ("state_after",),
}


def chained_outputs(block: str, path: str) -> tuple[str, ...]:
    """The outputs that have a chained oracle in a chained recording, where a checkpoint has them.

    The residual stream, the states after a call, the final norm (which is in no layer: its path
    has no number) and the logits.
    """
    if block in _STATES_AFTER:
        return _STATES_AFTER[block]
    inner = block == "rms_norm" and any(part.isdigit() for part in path.split("."))
    return ("out",) if block == "embedding" or (block in MAIN_INPUTS and not inner) else ()


@dataclass
class TensorRef:
    """A tensor of the table by its key, with one axis name per dimension."""

    tensor: str
    axes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "axes": list(self.axes)}


@dataclass
class SampledRef:
    """Keys of the tokens that are stored and of what is known of every row; `of` counts tokens."""

    tokens: str
    of: int
    reference: str
    oracle: str
    rms: str

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": {"tensor": self.tokens, "of": self.of},
            "sketch": {"reference": self.reference, "oracle": self.oracle, "rms": self.rms},
        }


@dataclass
class SimulatedRef:
    """What simulated correct kernels show of an output.

    `spread` has mean, deviation and largest of every gate's statistic, `truncated` the same of
    kernels whose products truncate. `model` holds the keys of the flat positions where the rounded
    model has other bits than the reference, and of its values there (None: nowhere); only 16-bit
    outputs (`narrow`) have one.
    """

    spread: dict[str, Any]
    narrow: bool
    model: tuple[str, str] | None = None
    truncated: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        if self.narrow:
            pair = self.model
            entry["model"] = None if pair is None else {"at": pair[0], "values": pair[1]}
        entry["spread"] = plain(self.spread, "spread")
        if self.truncated is not None:
            entry["truncated"] = plain(self.truncated, "truncated")
        return entry


@dataclass
class MemberRef:
    """Another way to round an output: the key of what it gives, and the mean, deviation and largest
    count of elements that simulated kernels like it have otherwise."""

    name: str
    values: str
    bits: list[float]

    def to_json(self) -> dict[str, Any]:
        bits = plain(self.bits, f"member {self.name}: bits")
        return {"name": self.name, "values": self.values, "bits": bits}


@dataclass
class BugRef:
    """A bug planted in a call: how far `output` is beyond its limits at most, and keys of flat
    positions there and of the values that the bug gives them."""

    name: str
    kind: str
    output: str
    margin: float
    at: str
    values: str

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"margin": plain(self.margin, f"bug {self.name}: margin")}


@dataclass
class ChainedRef:
    """How far a reference is from the chained oracle: the key of `o_chain - r`, None for zero."""

    delta: str | None


@dataclass
class LegalRef:
    """The values that are right at open elements of an output of integers or bools."""

    at: str
    """Key of flat positions, ascending, once for each value."""
    values: str
    distinct: int | None = None
    """The axis along which values may not be the same."""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"at": self.at, "values": self.values}
        return entry if self.distinct is None else entry | {"distinct": self.distinct}


@dataclass
class OutputRef:
    """A reference `r`, and how far it is from the float64 oracle `o`.

    `delta` is the key of `o - r` in f32, or None for exactly zero; `error` is
    sqrt(sum delta^2 / sum o^2) over the valid elements. Elements that `valid` marks false are
    judged only for being finite. Where it is `sampled`, these hold the chosen rows only.
    """

    tensor: str
    axes: tuple[str, ...]
    delta: str | None
    error: float
    valid: TensorRef | None = None
    sampled: SampledRef | None = None
    chained: ChainedRef | None = None
    simulated: SimulatedRef | None = None
    unstable: float | None = None
    """How far a second run of the call was off, where it gave other bits."""
    members: list[MemberRef] = field(default_factory=list)
    """Of a 16-bit output of a call without a native block."""
    undecidable: str | None = None
    """Key of the elements that correct kernels may choose otherwise; of integers and bools only."""
    labels: tuple[str, ...] | None = None
    """What verdicts call the axes, where not by their names: "" is an axis without a name."""
    ill_conditioned: str | None = None
    """Key of the rows that correct kernels do not agree on; of floats only."""
    _entry: Later = field(init=False, default_factory=lambda: Later())
    legal: LegalRef | None = None
    """What is right there; without it that is not known, and the elements are not judged."""
    left_out: int = 0
    """Elements that the caller did not want to be judged; `valid` says which."""
    trace: str | None = None
    """Key of the list of operations that it is made by, where those are not all of the call's."""

    def set_aside(self, key: str) -> None:
        """Says which rows are ill conditioned, which may be found out when all else is written."""
        self.ill_conditioned = key
        if self._entry:
            self._entry["ill_conditioned"] = key

    def to_json(self) -> Later:
        self._entry.update(self._fields())
        return self._entry

    def _fields(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "tensor": self.tensor,
            "delta": self.delta,
            "error": plain(self.error, "error"),
            "axes": list(self.axes),
        }
        if self.valid is not None:
            entry["valid"] = self.valid.to_json()
        if self.chained is not None:
            entry["chained_delta"] = self.chained.delta
        if self.simulated is not None:
            entry |= self.simulated.to_json()
        if self.unstable is not None:
            entry["unstable"] = plain(self.unstable, "unstable")
        if self.members:
            entry["members"] = [member.to_json() for member in self.members]
        if self.undecidable is not None:
            entry["undecidable"] = self.undecidable
        if self.labels is not None:
            entry["labels"] = list(self.labels)
        if self.ill_conditioned is not None:
            entry["ill_conditioned"] = self.ill_conditioned
        if self.left_out:
            entry["left_out"] = self.left_out
        if self.legal is not None:
            entry["legal"] = self.legal.to_json()
        if self.trace is not None:
            entry["trace"] = self.trace
        return entry if self.sampled is None else entry | self.sampled.to_json()


@dataclass
class Checkpoint:
    """One call of one block: what went in, with which weights and numbers, and what came out."""

    id: str
    block: str
    path: str
    function: str | None
    call: int
    step: int
    contract: str
    params: dict[str, Any]
    inputs: dict[str, TensorRef] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, OutputRef] = field(default_factory=dict)
    trace: str | None = None
    """Key of the list of operations that the rounded model was computed by."""
    amplification: float | None = None
    """How many times larger an error of the main input is in the output; None where not known."""
    bugs: list[BugRef] = field(default_factory=list)
    """Planted in the call's own trace, where it has no native block."""
    remarks: tuple[str, ...] = ()
    """Of gradients, what a verdict on them says."""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"id": self.id, "block": self.block, "path": self.path}
        if self.function is not None:
            entry["function"] = self.function
        tail: dict[str, Any] = {} if self.trace is None else {"trace": self.trace}
        if self.amplification is not None:
            tail["amplification"] = self.amplification
        if self.bugs:
            tail["bugs"] = [bug.to_json() for bug in self.bugs]
        if self.remarks:
            tail["remarks"] = list(self.remarks)
        return entry | {
            "call": self.call,
            "step": self.step,
            "contract": self.contract,
            "params": plain(self.params, f"{self.id}: params"),
            "inputs": {name: ref.to_json() for name, ref in self.inputs.items()},
            "weights": dict(self.weights),
            "outputs": {name: ref.to_json() for name, ref in self.outputs.items()},
            **tail,
        }


@dataclass
class Contract:
    """How the reference computed: storage dtype, multiply dtype, accumulator and rounding points.

    `accumulator` is {"bits": mantissa bits, "rounding": "nearest"}; `points` is "eager" (a rounding
    to storage after every torch operation) or "fused" (once, at the block's output). `inside` is
    what else simulated kernels do (contract_words.py), in the table's order.
    """

    storage: str
    multiply: str
    accumulator: dict[str, Any]
    points: str
    inside: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "storage": self.storage,
            "multiply": self.multiply,
            "accumulator": plain(self.accumulator, "contract: accumulator"),
            "points": self.points,
        }
        return entry | {"inside": list(self.inside)} if self.inside else entry


def checkpoint_id(path: str, function: str | None, call: int) -> str:
    """`model.layers.0.self_attn:sdpa#0`, or `model.norm#0` where a module itself was called."""
    return f"{path}{'' if function is None else ':' + function}#{call}"


def backward_id(forward: str) -> str:
    """Of the backward of the checkpoint `forward`."""
    return f"{forward}/{BACKWARD}"


def backward_kind(block: str) -> str:
    return f"{block}.{BACKWARD}"


def is_backward(kind: str) -> bool:
    return kind.endswith(f".{BACKWARD}")


def is_recorded_alone(kind: str, params: Mapping[str, Any]) -> bool:
    """Whether the recording alone judges a block: nothing native computes it, or what does rounds
    elsewhere than the model, as with quantised weights, or gives gradients."""
    return kind == "module" or is_backward(kind) or (kind != "op" and _states_layouts(params))


def _states_layouts(params: Mapping[str, Any]) -> bool:
    nested = (value for value in params.values() if isinstance(value, Mapping))
    return "layout" in params or "layouts" in params or any(map(_states_layouts, nested))


def call_of(id: str) -> str:
    """What warnings call the calls of a checkpoint's path and function: its id without number."""
    name, _, call = id.rpartition("#")
    return backward_id(name) if call.endswith(f"/{BACKWARD}") else name


def dtype_name(dtype: torch.dtype) -> str:
    """The written name of a torch dtype; FormatError for one that has none."""
    if dtype not in _dtypes():
        raise FormatError(f"dtype {dtype} cannot be recorded; known are {', '.join(ITEM_SIZES)}")
    return _dtypes()[dtype]


class Later(dict[str, Any]):
    """An object that is put into a checkpoint before it is known: `fill` says what it holds."""

    def fill(self, value: Mapping[str, Any]) -> None:
        self.update(plain(value))


_PLAIN = {str, int, bool, type(None), Later}
"""What JSON holds as it is."""


def plain(value: Any, where: str = "value") -> Any:
    """`value` as JSON holds it: numbers, strings, lists, objects; non-finite numbers as strings."""
    if value is None or isinstance(value, (str, bool, int, Later)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else non_finite_name(value)
    if isinstance(value, (dict, Mapping)):  # dict first: the other question takes longer
        return {
            str(key): item if type(item) in _PLAIN else plain(item, f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, Set):
        return [plain(item, where) for item in sorted(value)]
    if isinstance(value, (list, tuple, Sequence)):
        return [
            item if type(item) in _PLAIN else plain(item, f"{where}[{index}]")
            for index, item in enumerate(value)
        ]
    if f"{type(value).__module__}.{type(value).__name__}" == "torch.dtype":
        return str(value).removeprefix("torch.")
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # numpy and torch scalars
        return plain(value.item(), where)
    raise FormatError(f"{where} is a {type(value).__name__}, which a recording cannot hold")


def non_finite_name(value: float) -> str:
    """The string for a non-finite number in JSON."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def as_number(value: float | str) -> float:
    """The number that `plain` wrote: the inverse of `non_finite_name` for the three strings."""
    if isinstance(value, str) and value not in ("inf", "-inf", "nan"):
        raise FormatError(f"{value!r} is not a number; only inf, -inf and nan are strings")
    return float(value)
