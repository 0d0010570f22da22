"""Where a recording comes from: model, versions, run, weights, module tree."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from typing import Any

import torch

from ..errors import RecordError
from ..foreign import cache_in, is_static_cache
from ..format.host_copy import HostCopy
from ..format.payload import tensor_bytes
from ..format.recording import CODES, DTYPES, dtype_name
from ..models import dispatch
from ..models.parameters import first_names
from ..trace.wrapped import parts
from ..version import __version__
from .where import Where

BESIDE = 256 << 20
"""Bytes of a model whose weights are hashed during the run."""


def model_dtype(model: torch.nn.Module) -> str:
    """The written name of the dtype that most parameters have."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if not sizes:
        raise RecordError("[record] the model has no parameters")
    floats = [it for it in sizes if it.is_floating_point and DTYPES.get(it) not in (None, *CODES)]
    if not floats:
        known = ", ".join(map(str, sizes))
        raise RecordError(
            f"[record] all parameters are of {known} (quantised?): none tells the run's dtype"
        )
    return dtype_name(max(floats, key=lambda item: sizes[item]))


def describe_run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a forward call of the model was given, as far as `run` of the provenance needs it."""
    ids = arguments.get("input_ids")
    ids = arguments.get("inputs_embeds") if ids is None else ids
    shape = tuple(ids.shape) if isinstance(ids, torch.Tensor) else (1, 1)
    mask = arguments.get("attention_mask")
    left = None
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and not bool(mask.bool().all()):
        left = (~mask.bool()).int().cumprod(-1).sum(-1).tolist()
    given = cache_in(arguments)
    kind = "static" if is_static_cache(given) else "dynamic"
    return {
        "batch": shape[0],
        "tokens": shape[1] if len(shape) > 1 else 1,
        "cache": kind if given is not None or arguments.get("use_cache") else None,
        "left_pad": left,
    }


def summarise_runs(runs: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """`run` of the provenance: what the calls were, overridden by what the caller says."""
    first: Mapping[str, Any] = runs[0] if runs else {"batch": 0, "tokens": 0}
    caches = [run["cache"] for run in runs if run["cache"]]
    cached = bool(caches)
    padded = any(run["left_pad"] for run in runs)
    single = all(run["tokens"] == 1 for run in runs[1:])
    mode = "whole" if not cached else "decode" if single else "chunked"
    if padded:
        mode = "padded-decode" if cached else "padded"
    return {
        "mode": mode,
        "batch": first["batch"],
        "tokens": first["tokens"],
        "steps": len(runs) - 1 if cached and single else 0,
        "chunks": [run["tokens"] for run in runs] if mode == "chunked" else None,
        "left_pad": first.get("left_pad"),
        "cache": caches[0] if cached else None,
    } | dict(given)


def weights_sha256(model: torch.nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter, sorted by name."""
    return _sha256_of(_own_parameters(model))


def _own_parameters(
    model: torch.nn.Module,
) -> Iterator[tuple[str, torch.Tensor, HostCopy]]:
    names = sorted(name for name, first in first_names(model).items() if name == first)
    for name, parameter in parts(dispatch.parameters(model, names)):
        yield name, parameter, HostCopy(parameter, fixed=True)


def _sha256_of(parameters: Iterable[tuple[str, torch.Tensor, HostCopy]]) -> str:
    digest = hashlib.sha256()
    for name, parameter, content in parameters:
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(tensor_bytes(content.take()))
    return digest.hexdigest()


def promised_weights_sha256(model: torch.nn.Module) -> Callable[[], str]:
    """weights_sha256, made once; of a large model during the run."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size < BESIDE or dispatch.offloads(model):  # or weights come and go
        return cache(partial(weights_sha256, model))
    parameters = list(_own_parameters(model))  # now: during the run stubs replace modules
    thread = ThreadPoolExecutor(1)
    future = thread.submit(_sha256_of, parameters)
    thread.shutdown(wait=False)
    return future.result


def network(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The module tree; a tied parameter names the one that it shares its tensor with."""
    names = first_names(model)
    tree = []
    for path, module in model.named_modules():
        parameters = {}
        for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{path}.{name}".lstrip(".")
            owner = names[full]
            parameters[name] = {
                "dtype": dtype_name(value.dtype),
                "shape": list(value.shape),
                "tied": None if owner == full else owner,
            }
        tree.append({"path": path, "class": type(module).__name__, "parameters": parameters})
    return tree


def header(
    model: torch.nn.Module,
    where: Where,
    run: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    weights_sha256: str,
) -> dict[str, Any]:
    """name, provenance, config and network of a recording; `run` overrides what `runs` show."""
    config: Any = getattr(model, "config", None)
    return {
        "name": where.label,
        "provenance": {
            "created": where.created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": " ".join(sys.argv) if where.command is None else where.command,
            "producer": producer(),
            "architecture": type(model).__name__,
            "model_type": getattr(config, "model_type", None) or type(model).__name__,
            "dtype": model_dtype(model),
            "attention": getattr(config, "_attn_implementation", None),
            "model": {
                "source": where.source or _source(model),
                "seed": where.seed,
                "revision": where.revision,
                "weights_sha256": weights_sha256,
            },
            "run": summarise_runs(runs, run),
        },
        "config": {} if config is None else _config_dict(config),
        "network": network(model),
    }


def _config_dict(config: Any) -> dict[str, Any]:
    from ..compatibility import config_dict  # a model of transformers, which is there

    return config_dict(config)


def producer() -> dict[str, str]:
    """The versions that recorded, and the machine."""
    return {
        "python_inspector": __version__,
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "platform": _platform(),
    }


def _source(model: torch.nn.Module) -> str:
    """Where transformers loaded it from; the class of a model that was not loaded."""
    return getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__


def _platform() -> str:
    """System, machine and the vector instructions that torch uses: what the bits may depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.system()} {platform.machine()} {capability}"


@cache
def _version(package: str) -> str:
    """Read once: with a package's version its whole description is parsed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"
