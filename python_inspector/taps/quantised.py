"""Linear layers of quantised weights that native blocks compute: op quantised_linear's.

Which layout of plumbline.quantised a module's tensors have, names and dtypes only suggest. It is
the one whose product a float64 run of the module gives, of a vector that is drawn: a module that
computes anything else, as one that quantises its activations, is none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from ..quantised import FORMATS, dequantize
from ..quantised.ggml import BLOCKS
from ..quantised.layouts import LAYOUTS, ROWS
from ..trace.given import Given
from ..trace.replay import Runner, aside
from ..trace.reruns import exactly
from ..trace.wrapped import is_wrapper, parts
from .calls import Block, Call, only_out
from .common import Describe
from .generic import any_call

OPERANDS = ("codes", "scales", "zeros", "global_scale", "group_index")
"""Of op quantised_linear, in the order of `names_of`."""
_ALONE = {"linear", "lm_head"}
_WHOLE = {"glu_mlp", "attention", "decoder_layer"}
"""Kinds of blocks that are such a layer, and that may have some."""
_PARTS = {"attention": "self_attn.", "mlp": "mlp."}
"""Of a decoder layer, by its params."""
_CODES = {
    torch.int8: ("i8",),
    torch.float8_e4m3fn: ("f8",),
    torch.float8_e5m2: ("f8",),
    torch.uint8: ("bytes", "blocks"),
    torch.int32: ("words",),
}
"""Types of codes in the table of layouts, by the dtype that they are stored in."""
_AGREES = 1e-6
"""Of the sum of magnitudes: float32's own roundings are less, a code's or a scale's fault more."""


@dataclass(frozen=True)
class QuantisedLinear:
    layout: str
    group: tuple[int, int] | None
    """How many rows and columns share a scale; None where the layout says it."""
    shape: tuple[int, int]
    operands: Mapping[str, torch.Tensor]
    """As op quantised_linear calls them, and `bias`."""

    @property
    def params(self) -> dict[str, Any]:
        """As the op has them."""
        group = {} if self.group is None else {"group": list(self.group)}
        return {"layout": self.layout, **group}

    @property
    def part(self) -> dict[str, Any]:
        """As a block has them of one of its layers."""
        return {**self.params, "shape": list(self.shape)}


def quantised_linears(
    module: torch.nn.Module, known: Callable[[torch.nn.Module], QuantisedLinear | None]
) -> dict[str, QuantisedLinear] | None:
    """The layers in a module by their paths in it, "" for itself; None where some codes are of
    anything else."""
    found: dict[str, QuantisedLinear] = {}
    for path, part in module.named_modules():
        if not has_codes(part):
            continue
        layer = known(part)
        if layer is None:
            return None
        found[path] = layer
    return found


def has_codes(module: torch.nn.Module) -> bool:
    """Whether it has quantised tensors of its own."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(is_wrapper(type(t)) or t.dtype in _CODES for t in own)


def described(describe: Describe, layers: Mapping[str, QuantisedLinear]) -> Describe:
    """As `describe` has a call of a module with these layers; as any call, where its kind of block
    cannot have them."""

    def either(call: Call) -> Block | None:
        block = describe(call)
        if block is None or block.kind not in _ALONE | _WHOLE:
            return any_call(call)
        return with_layers(block, layers)

    return either


def with_layers(block: Block, layers: Mapping[str, QuantisedLinear]) -> Block:
    """A block of kind `linear` and the like that has these layers at their paths in its module."""
    for path, layer in layers.items():
        prefix = f"{path}." if path else ""
        others = {n: t for n, t in block.weights.items() if not n.startswith(prefix)}
        block.weights = others | {f"{prefix}{name}": t for name, t in layer.operands.items()}
        if not path:
            block.params |= layer.params
    if block.kind == "decoder_layer":
        for name, prefix in _PARTS.items():
            _state(block.params[name], layers, prefix)
    elif block.kind in _WHOLE:
        _state(block.params, layers, "")
    block.settle = _uses_all  # its reruns follow the choices of the run
    return block


def _state(params: dict[str, Any], layers: Mapping[str, QuantisedLinear], prefix: str) -> None:
    inside = {p.removeprefix(prefix): it for p, it in layers.items() if p.startswith(prefix) and p}
    if inside:
        params["layouts"] = {path: layer.part for path, layer in inside.items()}


def _uses_all(block: Block, rerun: Any, given: Given) -> None:
    """Its operands are those that it states."""


def recognised(module: torch.nn.Module, dtype: torch.dtype) -> QuantisedLinear | None:
    """What a module is, of which calls are in this dtype; None for anything else."""
    tensors = dict(_tensors(module))
    if any(t.is_meta for t in tensors.values()) or next(module.children(), None) is not None:
        return None
    bias = tensors.get("bias")
    exact: dict[int, torch.Tensor | None] = {}
    for layout, group, operands, weight in _candidates(module, tensors):
        rows, columns = weight.shape
        engine = torch.Generator().manual_seed(columns)
        x = torch.randn((1, 2, columns), generator=engine).to(dtype).to(weight.device)
        if columns not in exact:
            exact[columns] = _exact(module, x)
        if _is_product(exact[columns], x, weight, bias):
            given = operands if bias is None else {**operands, "bias": bias}
            return QuantisedLinear(layout, group, (rows, columns), given)
    return None


def _is_product(
    exact: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> bool:
    wide, of = x.double(), weight.double()
    product, size = wide @ of.mT, wide.abs() @ of.abs().mT
    if bias is not None:
        product, size = product + bias.double(), size + bias.double().abs()
    if exact is None or exact.shape != product.shape:
        return False
    return bool(((product - exact).abs() <= _AGREES * size).all())


def _exact(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """What it gives in float64; None where that is not known, or depends on choices."""

    def again(run: Runner) -> Any:
        return run(module.forward, (x,), {}, [module])

    given = Given()
    try:
        with aside(), torch.no_grad():
            _, exact = exactly(only_out(), again, lambda rerun, given: None, given)
    except Exception:  # code that is no linear layer may fail in any way
        return None
    quantises = any(choice.quantised for choice in given.choices)
    return None if given.opaque or quantises else exact["out"][0]


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Its own, with what files of it have besides, such as scales that are no parameters."""
    stored = module.state_dict(keep_vars=True).items()
    named = {name: t for name, t in stored if isinstance(t, torch.Tensor)}
    named |= dict(module.named_buffers(recurse=False))
    named |= dict(module.named_parameters(recurse=False))
    yield from parts(named.items())


Candidate = tuple[str, tuple[int, int] | None, dict[str, torch.Tensor], torch.Tensor]
"""Layout, group, operands and the weight that they make."""


def _candidates(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> Iterator[Candidate]:
    roles = _roles(tensors)
    if "codes" not in roles:
        return
    rows = getattr(module, "out_features", None)
    columns = getattr(module, "in_features", None)
    for layout in FORMATS:
        given = _operands(layout, roles)
        if given is None:
            continue
        group = _group(module, layout, given, rows, columns)
        try:
            tensors_of = [given.get(name) for name in OPERANDS if name in given]
            weight = dequantize(layout, *tensors_of, group=group)
        except (UsageError, RuntimeError, IndexError):
            continue
        if weight.ndim == 1 and isinstance(rows, int) and weight.numel() % rows == 0:
            weight = weight.reshape(rows, -1)  # in one row
        if weight.ndim == 2 and _fills_words(layout, weight.shape, (rows, columns)):
            yield layout, group, given, weight[: rows or None, : columns or None]


def _fills_words(layout: str, shape: torch.Size, stated: tuple[int | None, int | None]) -> bool:
    """Whether it is the weight that the module states, but for what fills words up."""
    words = ROWS[layout].get("codes") == "words"
    return all(
        of is None or have == of or (words and 0 < have - of < 8)
        for have, of in zip(shape, stated, strict=True)
    )


def _roles(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Which of them may be which operand, by names and dtypes."""
    roles: dict[str, torch.Tensor] = {}
    for name, t in tensors.items():
        if name == "bias" or name.startswith(("input", "output")):
            continue
        if "zero" in name:
            role = "zeros"
        elif "g_idx" in name:
            role = "group_index"
        elif "global" in name:
            role = "global_scale"
        elif "scale" in name or "absmax" in name:
            role = "scales"
        elif t.ndim == 2 and t.dtype in _CODES:
            role = "codes"
        else:
            continue
        if role in roles:
            return {}
        roles[role] = t.view(torch.uint8) if t.dtype == torch.float8_e8m0fnu else t
    return roles


def _operands(layout: str, roles: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Those that the layout has; None where some are missing, or there are more."""
    row = ROWS[layout]
    if row.get("codes", "blocks") not in _CODES.get(roles["codes"].dtype, ()):
        return None
    if layout in BLOCKS:
        return {"codes": roles["codes"]} if roles.keys() == {"codes"} else None
    of = LAYOUTS[layout]
    has = {
        "codes": True,
        "scales": True,
        "zeros": of.zeros is not None,
        "global_scale": of.global_scale is not None,
        "group_index": of.group_index is not None and "group_index" in roles,
    }
    given = {name: roles[name] for name, there in has.items() if there and name in roles}
    wanted = {name for name, there in has.items() if there}
    unused = roles.keys() - wanted - {"zeros", "group_index"}  # that are all alike
    scales = roles.get("scales")
    if given.keys() != wanted or unused or scales is None or scales.ndim > 2:
        return None
    return given if (scales.dtype == torch.uint8) == of.exponents else None


def _group(
    module: torch.nn.Module,
    layout: str,
    given: Mapping[str, torch.Tensor],
    rows: int | None,
    columns: int | None,
) -> tuple[int, int] | None:
    """Rows and columns of a scale."""
    of = LAYOUTS.get(layout)
    if of is None or of.flat is not None:
        return None
    codes, scales = given["codes"], given["scales"]
    shape = list(codes.shape)
    if of.word is not None:
        shape[of.packed_axis] *= of.word // 4
    have = list(scales.shape) if scales.ndim == 2 else [scales.numel(), 1]
    if of.by_input:
        shape, have = shape[::-1], have[::-1]
    lengths = (rows or shape[0], columns or shape[1])
    stated = getattr(module, "block_size", None) or getattr(module, "group_size", None)
    stated = stated if isinstance(stated, (list, tuple)) else (1, stated)
    return (
        _extent(lengths[0], have[0], stated[0]),
        _extent(lengths[1], have[1], stated[-1]),
    )


def _extent(length: int, have: int, stated: Any) -> int:
    if have in (length, 1):
        return length // max(have, 1)
    even = length // have if have and length % have == 0 else 0
    if even:
        return even
    if isinstance(stated, int) and stated > 0 and -(-length // stated) == have:
        return stated
    least = -(-length // max(have, 1))
    return 1 << (least - 1).bit_length()
