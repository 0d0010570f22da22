"""Rotary embeddings: frequencies as the config gives them, and the cos/sin table of a call."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..compatibility import rope_init_function, rope_parameters
from ..format.axes import TABLE, Named
from ..trace.replay import Rerun, Runner, Twin
from .calls import Block, Frame, Recorder
from .components import position_ids

STATEFUL = ("dynamic", "longrope")
"""Types that recompute inv_freq inside a forward."""


def after_rotary_embedding(
    recorder: Recorder, frame: Frame, result: Any, table: str | None = None
) -> None:
    """Records the frequencies where they are new, then the table, whose columns are in halves
    unless `table` says otherwise.

    It runs after the call, because the call itself may change inv_freq; the table's oracle is the
    forward beneath that update, on inv_freq and attention_scaling as the call left them.
    """
    module: Any = frame.module
    positions: torch.Tensor = frame.call["position_ids"]
    _record_positions(recorder, positions)
    inv_freq = module.inv_freq
    known = recorder.frequencies.get(frame.path)
    if known is None or not torch.equal(known, inv_freq):
        recorder.frequencies[frame.path] = inv_freq.clone()
        _record_frequencies(recorder, frame.path, module, positions)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        return {"cos": (result[0], TABLE), "sin": (result[1], TABLE)}

    axes = ("batch", "token")
    inputs: dict[str, Named] = {
        "positions": (positions, axes),
        "inv_freq": (inv_freq, ("head_dim",)),
    }
    params: dict[str, Any] = {"attention_scaling": float(module.attention_scaling)}
    if table is not None:
        params["table"] = table
    forward = inspect.unwrap(type(module).forward)
    recorder.record(
        frame.path,
        None,
        Block("rotary_table", inputs, outputs, params),
        result,
        lambda runner: runner(forward, (module, frame.call["x"], positions), {}, [module]),
    )


def _record_positions(recorder: Recorder, positions: torch.Tensor) -> None:
    """Positions that the model itself made, because it was given none."""
    above = recorder.stack[-1]
    if above.call.get("position_ids") is not None:
        return
    cache = above.call.cache
    past = 0 if cache is None else int(cache.get_seq_length())
    recorder.record(above.path, "position_ids", position_ids(past, None), positions, None)


def _record_frequencies(
    recorder: Recorder, path: str, module: Any, positions: torch.Tensor
) -> None:
    params = frequency_params(module, int(positions.max()) + 1)
    length = params.get("length")
    function = rope_init_function(module)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        inv_freq, scaling = result
        # A float in both runs: f32 is how the format keeps it, f64 is what the oracle has.
        scaling = torch.tensor([float(scaling)], dtype=inv_freq.dtype, device=inv_freq.device)
        return {
            "inv_freq": (inv_freq, ("head_dim",)),
            "attention_scaling": (scaling, ("group",)),
        }

    def again(runner: Runner) -> Rerun:
        kwargs = {} if length is None else {"seq_len": length}
        return runner(function, (module.config, module.inv_freq.device), kwargs)

    block = Block("rotary_frequencies", {}, outputs, params, contract="float32")
    used = (module.inv_freq, module.attention_scaling)
    recorder.record(path, "frequencies", block, used, again)


def frequency_params(module: Any, call_length: int) -> dict[str, Any]:
    """What the rope type uses, transformers' defaults filled in.

    `length` is what a stateless function needs to give the frequencies in use now: for dynamic the
    largest length seen since the last reset, at least max_position; for longrope this call's.
    """
    config, kind = module.config, module.rope_type
    rope = rope_parameters(config)
    params: dict[str, Any] = {
        "type": kind,
        "dim": 2 * module.inv_freq.numel(),
        "theta": float(rope["rope_theta"]),
    }
    original = rope.get("original_max_position_embeddings")
    if kind in ("yarn", "longrope"):
        factor = rope.get("factor")
        params["factor"] = config.max_position_embeddings / original if factor is None else factor
        if rope.get("attention_factor") is not None:
            params["attention_factor"] = float(rope["attention_factor"])
    elif kind in ("linear", "dynamic", "llama3"):
        params["factor"] = rope["factor"]
    if kind in ("yarn", "longrope", "llama3"):
        params["original_max_position"] = original
    if kind == "dynamic":
        params["max_position"] = config.max_position_embeddings
        params["length"] = max(config.max_position_embeddings, int(module.max_seq_len_cached))
    if kind == "llama3":
        params |= {name: rope[name] for name in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        params["beta_fast"] = rope.get("beta_fast") or 32
        params["beta_slow"] = rope.get("beta_slow") or 1
        params["truncate"] = bool(rope.get("truncate", True))
        pair = {name: rope.get(name) for name in ("mscale", "mscale_all_dim")}
        if "attention_factor" not in params and all(pair.values()):
            params |= pair
    if kind == "longrope":
        params["length"] = call_length
        for name in ("short_factor", "long_factor"):  # constants that the model rounds to float32
            params[name] = torch.tensor(rope[name], dtype=torch.float32).double().tolist()
    return params
