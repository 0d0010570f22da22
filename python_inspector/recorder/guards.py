"""Refuses runs whose recording would mislead; `force` turns a refusal into a kept warning.

Each guard is a trap that was met; its text says what transformers or torch silently does there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..arrays import require_plain
from ..compatibility import model_warnings, rope_init_function
from ..errors import RecordError
from ..foreign import cache_in
from ..models import dispatch
from ..taps.architectures import Taps
from ..trace.wrapped import is_quantised

_TORCH_ATTENTION = ("eager", "sdpa")
_RELATIVE_ROUNDING = (
    1e-5  # inv_freq in float32 is within 1e-6 of itself anywhere, in bf16 within 4e-3
)


def check_model(model: torch.nn.Module, taps: Taps, force: bool) -> list[str]:
    """Warnings to keep; RecordError for what must not be recorded."""
    _refuse_always(model)
    found: list[str] = []
    for text in (
        *_softcap_dropped(model, taps),
        *_rounded_constants(model),
        *(_mixed_dtypes(model) if taps.architecture is not None else ()),
        *_kernels(model),
        *_replaced_functions(taps),
    ):
        if not force:
            raise RecordError(f"{text} (force=True records it all the same)")
        found.append(f"forced: {text}")
    return [*found, *model_warnings(model_type_of(model)), *_identity_weights(model)]


def model_type_of(model: torch.nn.Module) -> str:
    """The architecture, as transformers' configuration names it; "" where there is none."""
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def _refuse_always(model: torch.nn.Module) -> None:
    training = [path or type(model).__name__ for path, m in model.named_modules() if m.training]
    if training:
        raise RecordError(
            f"[record] {training[0]} is in train mode: dropout is random; call model.eval() first"
        )
    require_plain("record", (*model.named_parameters(), *model.named_buffers()))
    if hasattr(model, "_orig_mod"):
        raise RecordError("[record] a compiled model hides its blocks; record the model as it was")
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if implementation is not None and implementation not in _TORCH_ATTENTION:
        raise RecordError(
            f"[record] attn_implementation {implementation!r} runs kernels that cannot be lifted "
            'to float64; use "eager" or "sdpa"'
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise RecordError(
            "[record] autocast is on: it changes dtypes between blocks; switch it off"
        )


def _softcap_dropped(model: torch.nn.Module, taps: Taps) -> Iterator[str]:
    name = taps.architecture.softcapping if taps.architecture is not None else None
    config: Any = getattr(model, "config", None)
    if name is None or getattr(config, name, None) is None:
        return
    if config._attn_implementation != "eager":
        yield (
            f"[record] {config._attn_implementation} silently ignores {name}="
            f'{getattr(config, name)}: load the model with attn_implementation="eager"'
        )


def _rounded_constants(model: torch.nn.Module) -> Iterator[str]:
    """`model.to(bfloat16)` also casts inv_freq and embed_scale; loading with dtype= does not."""
    advice = "load the model with dtype=... instead of calling .to(dtype)"
    for path, module in model.named_modules():
        original = getattr(module, "original_inv_freq", None)
        if isinstance(original, torch.Tensor) and isinstance(
            getattr(module, "rope_type", None), str
        ):
            exact = rope_init_function(module)(module.config, original.device)[0]
            off = float(((original.float() - exact) / exact).abs().max())
            if original.dtype != torch.float32 or off > _RELATIVE_ROUNDING:
                yield (
                    f"[record] {path}.inv_freq is {original.dtype} and off by {off:.1e} from what "
                    f"the config gives: {advice}"
                )
        scale, exact_scale = (
            getattr(module, n, None) for n in ("embed_scale", "scalar_embed_scale")
        )
        if isinstance(scale, torch.Tensor) and exact_scale is not None:
            dtype = getattr(module, "weight").dtype  # noqa: B009
            # transformers makes the buffer in the default dtype of the moment
            made = [torch.tensor(exact_scale, dtype=d) for d in (dtype, torch.float32)]
            wanted = [value.to(dtype).item() for value in made]
            if scale.to(dtype).item() not in wanted:
                yield (
                    f"[record] {path}.embed_scale is {scale.to(dtype).item()}, the config gives "
                    f"{wanted[0]}: {advice}"
                )


def _mixed_dtypes(model: torch.nn.Module) -> Iterator[str]:
    first: dict[torch.dtype, str] = {}
    for path, module in model.named_modules():
        if is_quantised(module):
            continue
        for name, parameter in module.named_parameters(path):
            first.setdefault(parameter.dtype, name)
    if len(first) > 1:
        listed = ", ".join(f"{name} is {dtype}" for dtype, name in first.items())
        yield f"[record] parameters differ in dtype, a contract has one storage dtype: {listed}"


def _kernels(model: torch.nn.Module) -> Iterator[str]:
    if getattr(model, "_use_kernels", False):
        yield "[record] the model uses hub kernels, which cannot be lifted: use_kernels=False"
        return
    for path, module in model.named_modules():
        if "forward" in vars(module) and not dispatch.is_placed(module):
            yield (
                f"[record] {path or 'the model'} has a replaced forward (a hub kernel or another "
                "hook): what runs is not transformers' code"
            )
            return


def _replaced_functions(taps: Taps) -> Iterator[str]:
    """transformers takes mamba_ssm and causal_conv1d instead of its torch code if they import."""
    for file in taps.files():
        for name, function in inspect.getmembers(file, inspect.isfunction):
            used = inspect.getclosurevars(function).nonlocals.get("implementation")
            if used is not None and used is not inspect.unwrap(function):
                yield (
                    f"[record] {name} runs {used.__module__}.{used.__name__}, a kernel that cannot "
                    "be lifted to float64 and rounds elsewhere: record where that package is not "
                    "installed"
                )


def _identity_weights(model: torch.nn.Module) -> Iterator[str]:
    """Fresh initialisation hides bugs: norm weights that do nothing, biases of zero."""
    norms = [
        f"{path}.weight"
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        and isinstance(getattr(module, "weight", None), torch.Tensor)
    ]
    for value, word in ((1, "ones"), (0, "zeros")):
        weights = dispatch.parameters(model, norms)
        if norms and all(bool((weight == value).all()) for _, weight in weights):
            yield (
                f"norm weights are all {word}, this recording cannot see whether they are applied "
                "or how (1 + weight, order of rounding)"
            )
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    if biases and not any(bool(bias.any()) for _, bias in dispatch.parameters(model, biases)):
        yield "biases are all zero, this recording cannot see whether they are added"


def refuse_packed(mask_arguments: Mapping[str, Any], force: bool) -> None:
    """Positions that jump, without mask and cache, make transformers assume packed sequences."""
    positions = mask_arguments.get("position_ids")
    given = (mask_arguments.get("attention_mask"), cache_in(mask_arguments))
    if force or positions is None or any(value is not None for value in given):
        return
    if bool((positions.diff(dim=-1) != 1).any()):
        raise RecordError(
            "[record] position_ids jump and there is neither attention_mask nor cache: "
            "transformers takes that for packed sequences and masks across the jumps; pass an "
            "attention_mask"
        )


@contextmanager
def exact_products() -> Iterator[dict[str, Any]]:
    """Switches off TF32 and reduced-precision reductions; gives what was on, for the notes."""
    matmul = torch.backends.cuda.matmul
    flags: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
        f"cuda.matmul.{name}": (partial(getattr, matmul, name), partial(setattr, matmul, name))
        for name in (
            "allow_tf32",
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_reduced_precision_reduction",
        )
    }
    # As the property does, which torch's own test modules forbid to set once they are imported.
    flags["cudnn.allow_tf32"] = (torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32)
    old = {name: get() for name, (get, _) in flags.items()}
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        for _, put in flags.values():
            put(False)
        yield {name: True for name, value in old.items() if value}
    finally:
        for name, (_, put) in flags.items():
            put(old[name])
        torch.set_float32_matmul_precision(precision)
