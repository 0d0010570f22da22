"""Whether What and Proof fit together and the model, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from ..errors import RecordError
from ..format.blocks import BLOCKS
from ..format.contract_words import RECORDED, asked, misfit
from ..format.recording import DTYPES
from ..format.sampled import Sampling
from ..models import dispatch
from ..taps.options import Options, Proof, What
from .losses import LOSSES, require_loss


def asked_options(model: torch.nn.Module, what: What, proof: Proof) -> Options:
    """RecordError where they cannot be had."""
    _check_what(model, what)
    _check_proof(proof)
    _check_loss(model, proof)
    _check_rows(model, what, proof)
    if proof.chained:
        _check_chained(model, what, proof)
    inside = _inside(proof.contract, model)
    if inside and not (proof.spread and proof.oracle):
        raise RecordError(
            f"[record] contract {proof.contract} needs an oracle and simulated kernels: "
            f"oracle=True (it is {proof.oracle!r}) and spread above 0 (it is {proof.spread})"
        )
    if what.rows is not None:
        whole = first_and_last(model) if what.whole_layers is None else what.whole_layers
        what = replace(what, whole_layers=frozenset(whole), sampling=what.sampling or Sampling())
    return Options(what, proof, inside)


def first_and_last(model: torch.nn.Module) -> list[int]:
    """The first decoder layer of each kind (attention with and without a window, mamba, hybrid) and
    the last one."""
    config = getattr(model, "config", None)
    count = int(getattr(config, "num_hidden_layers", 0))
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    firsts = {kind: i for i, kind in reversed([*enumerate(kinds or [""])])}
    return sorted({*firsts.values(), max(0, count - 1)})


def _check_what(model: torch.nn.Module, what: What) -> None:
    if what.masked_rows not in ("excluded", "judged"):
        raise RecordError(
            f'[record] masked_rows is {what.masked_rows!r}; it is "excluded" or "judged"'
        )
    if isinstance(what.blocks, str):
        raise RecordError(f"[record] blocks is the string {what.blocks!r}; give a list of kinds")
    unknown = sorted(set(what.blocks or ()) - {*BLOCKS, "module"})
    if unknown:
        raise RecordError(f"[record] unknown block {unknown[0]!r}; known are {', '.join(BLOCKS)}")
    _check_numbers("layers", what.layers, "indices")
    _check_numbers("calls", what.calls, "numbers")
    if not isinstance(model, torch.nn.Module):
        raise RecordError(f"[record] model is a {type(model).__name__}, not a torch.nn.Module")


def _check_numbers(name: str, given: Collection[int] | None, kind: str) -> None:
    if bad := [i for i in given or () if not isinstance(i, int) or i < 0]:
        raise RecordError(f"[record] {name} holds {bad[0]!r}; give {kind} from 0")


def _check_proof(proof: Proof) -> None:
    if proof.oracle not in (True, False, "leaves"):
        raise RecordError(f'[record] oracle is {proof.oracle!r}; it is True, False or "leaves"')
    if proof.spread < 0:
        raise RecordError(
            f"[record] spread is {proof.spread}; it counts simulated kernels, 0 for none"
        )
    if proof.backward and not (proof.spread and proof.oracle):
        raise RecordError(
            "[record] backward needs an oracle and simulated kernels, without which no gradient is "
            f"judged: oracle=True (it is {proof.oracle!r}) and spread above 0 (it is "
            f"{proof.spread})"
        )


def _check_loss(model: torch.nn.Module, proof: Proof) -> None:
    if proof.loss is None:
        return
    if proof.loss not in LOSSES or not proof.backward:
        raise RecordError(
            f"[record] loss is {proof.loss!r}, with backward={proof.backward}; it is "
            f"{' or '.join(LOSSES)}, with backward=True"
        )
    require_loss(model)


def _check_rows(model: torch.nn.Module, what: What, proof: Proof) -> None:
    if what.rows is None:
        if what.whole_layers is not None:
            raise RecordError(
                "[record] whole_layers goes with rows: without it every layer is whole"
            )
        return
    if what.rows < 2:
        raise RecordError(f"[record] rows is {what.rows}; at least 2, the first and the last token")
    if proof.chained:
        raise RecordError("[record] chained needs every token of every layer: record without rows")
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    beyond = [i for i in what.whole_layers or () if i < 0 or (count is not None and i >= count)]
    if beyond:
        raise RecordError(f"[record] whole_layers holds {beyond[0]}, the model has {count} layers")


def _check_chained(model: torch.nn.Module, what: What, proof: Proof) -> None:
    if what.calls is not None:
        raise RecordError("[record] chained goes from call to call: record all calls")
    if what.direct or what.sampling is not None or proof.oracle is not True:
        raise RecordError(
            "[record] chained needs whole outputs and the oracle of every block: no direct, no "
            f"sampling, and oracle=True (it is {proof.oracle!r})"
        )
    if dispatch.offloads(model):
        raise RecordError(
            "[record] chained runs the whole model at once, but some of its weights are offloaded "
            "by its device map; leave chained out, or use a map of devices that hold all of it"
        )


def _inside(contract: str | None, model: torch.nn.Module) -> frozenset[str]:
    """What a contract asks of simulated kernels; a recording rounds where the model's code does."""
    try:
        inside = asked(contract, RECORDED).inside
    except ValueError as error:
        raise RecordError(f"[record] {error}") from None
    parameters = {DTYPES[p.dtype] for p in model.parameters() if p.dtype in DTYPES}
    if why := misfit(inside, parameters, "no parameter of the model"):
        raise RecordError(f"[record] {why}")
    return inside
