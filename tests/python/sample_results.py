"""Result files of `harness --json` as tests need them: any number of checkpoints, with plants."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]

BLOCKS = (
    "rms_norm",
    "linear",
    "rotary",
    "sdpa",
    "glu_mlp",
    "attention",
    "decoder_layer",
    "lm_head",
)
DTYPES = ("f32", "bf16", "f16")
NOISE = {"f32": 1e-7, "bf16": 2e-3, "f16": 2.5e-4}  # error of a right kernel


def statistics(error: float) -> Line:
    family = {"family": "token", "value": error, "normalised": error, "worst": 1,
              "worst_value": error, "worst_kappa": 1.2}  # fmt: skip
    return {"E_T": error, "M_E": 3 * error, "M_E_at": 7, "gain": error / 9, "families": [family]}


def gate(name: str, statistic: float, noise: float, c: float) -> Line:
    return {
        "name": name, "statistic": statistic, "limit": c * 1.2 * noise,
        "derivation": {"c": c, "kappa": 1.2, "reference": noise, "floor": noise / 2},
        "passed": statistic <= c * 1.2 * noise, "where": "batch 0, token 1",
    }  # fmt: skip


def output(dtype: str, error: float) -> Line:
    noise, c = NOISE[dtype], 4.0 if dtype == "f32" else 2.0
    gates = [gate("tensor", error, noise, c), gate("token", 1.1 * error, 1.1 * noise, c)]
    failed = not all(each["passed"] for each in gates)
    exact = {"name": "structure", "statistic": 0.0, "limit": 0.0, "derivation": {},
             "passed": True, "where": ""}  # fmt: skip
    counts = {"finite": 64, "plus_infinity": 0, "minus_infinity": 0, "nan": 0}
    classes = dict.fromkeys(("wrong", "padded_wrong", "range_hazards", "unknown_oracle"), 0)
    groups = [{"family": "token", "group": f"token {i}", "value": error} for i in range(3)]
    maps = [{"name": "token", "energy": [0.1, 0.9, 0.0]}, {"name": "head", "energy": [1.0, 0.0]}]
    picture = {"row_axes": "token", "column_axes": "head", "rows": 3, "columns": 2,
               "cells": ["c0", "f0", "00"]}  # fmt: skip
    where = {"region": "token 1", "share": 0.99, "worst": "token 1", "maps": maps,
             "picture": picture}  # fmt: skip
    bits = {"n": 64, "differ": 1, "set_aside": 0, "first": 3, "q": 0.01, "limit": 8, "passed": True}
    return {
        "name": "out", "status": "fail" if failed else "pass", "reason": "",
        "gates": [exact, *gates],
        "classes": {"y": counts, "reference": counts, "rounded": counts, **classes,
                    "first_wrong": -1, "first_padded_wrong": -1},
        "statistics": statistics(error), "reference_statistics": statistics(noise),
        "recorded_error": noise,
        "golden_suspect": "",
        "ill_conditioned": "",
        "rounding": "",
        "floors": {"accumulation": noise / 9, "norm": noise / 2, "element": noise},
        "informative": {"values": {}, "octaves": [30, 10, 12, 8, 4], "ulps": [60, 4],
                        "worst_groups": groups},
        "conformance": None if dtype == "f32" else bits,
        "where": where if failed else None,
        "mismatch": "1 of 64 elements beyond the limit (1.6 %)" if failed else "",
    }  # fmt: skip


def checkpoint(
    number: int, *, block: str = "linear", dtype: str = "f32", device: str = "cpu",
    error: float | None = None, **changed: Any,
) -> Line:  # fmt: skip
    """A checkpoint as the harness writes it; `error` of its output decides whether it passes."""
    out = output(dtype, NOISE[dtype] if error is None else error)
    name = f"model.layers.{number}.{block}#0"
    failed = out["status"] == "fail"
    return {
        "type": "checkpoint", "status": out["status"], "block": block, "checkpoint": name,
        "recording": f"tiny/whole-{dtype}", "fixture": f"fixtures/tiny/whole-{dtype}",
        "device": device, "dtype": dtype, "contract": f"{dtype} acc24 eager",
        "looser_contracts": [], "impl": [f"{block}/avx2"], "fused": False, "step": 0,
        "reason": "tensor error beyond its limit" if failed else "", "details": [],
        "diagnosis": "", "known_bug": None, "not_judged": [],
        "outputs": [out], "features": ["causal"],
        "blind_to": ["window"] if number % 50 == 0 else [],
        "output_sha256": f"{number:015x}{int(error is not None)}{0:048x}",
        "golden_sha256": "b" * 64, "determinism": "D0", "runs": 2, "margins": None,
        "passing_bugs": None, "seconds": 1e-4, "chain": None,
        "again": f"harness --fixture fixtures/tiny/whole-{dtype} --checkpoint '{name}'",
        **changed,
    }  # fmt: skip


def chain_row(depth: int) -> Line:
    return {
        "checkpoint": f"model.layers.{depth}#0", "block": "decoder_layer", "output": "out",
        "step": 0, "isolated": 1e-7, "isolated_limit": 4e-7, "isolated_failed": False,
        "inherited": 1e-7 * depth or "nan", "chained": 1e-7 * (depth + 1), "chained_limit": 1e-5,
        "reference": 1e-7, "floor": 1e-7, "forecast": 1e-7, "excess": 1.0, "shadow": "nan",
        "simulated": "nan", "shadow_limit": "nan", "changed_bytes": 0, "saturated": False,
        "diagnosis": "clean",
    }  # fmt: skip


def chain(number: int, depth: int = 6) -> Line:
    """A whole model's run."""
    rows = [chain_row(i) for i in range(depth)]
    found = {"first_divergence": None, "onset": None, "culprit": None, "culprit_block": None}
    return checkpoint(
        number, block="model", checkpoint="(chain)", recording=f"tiny/chain-{number}",
        chain={**found, "rows": rows},
    )  # fmt: skip


def run_line(**changed: Any) -> Line:
    return {
        "type": "run", "schema": 1, "version": "0.1.0", "command": "harness --device cpu",
        "started": "2000-01-01T00:00:00Z", "environment": {"compiler": "12.2.0"},
        "devices": ["cpu: some processor"], "request": {}, **changed,
    }  # fmt: skip


def summary_line(lines: Iterable[Line], **changed: Any) -> Line:
    statuses = [line["status"] for line in lines]
    names = ("pass", "fail", "unsupported", "blind", "nondeterministic", "bad_input",
             "device_error", "timeout", "internal_error")  # fmt: skip
    return {
        "type": "summary", "checkpoints": len(statuses),
        "counts": {name: statuses.count(name) for name in names}, "blind_features": [],
        "failures": [],
        "missing": [], "interrupted": "", "exit_code": int("fail" in statuses),
        "verdict": "in words", "seconds": 1.5, **changed,
    }  # fmt: skip


def checkpoints(count: int, plants: dict[int, float] | None = None) -> list[Line]:
    """`count` different checkpoints of all blocks and dtypes.

    plants: by how much the errors of some, by number, are larger than a right kernel's.
    """
    factors = plants or {}
    lines = []
    for i in range(count):
        dtype = DTYPES[i % 3]
        error = NOISE[dtype] * factors[i] if i in factors else None
        lines.append(checkpoint(i, block=BLOCKS[i % len(BLOCKS)], dtype=dtype, error=error))
    return lines


def write(path: Path, lines: list[Line], *, summary: bool = True, run: Line | None = None) -> Path:
    """A result file; without `summary` it is one that was cut short."""
    ends = [summary_line(lines)] if summary else []
    texts = [json.dumps(line) for line in [run or run_line(), *lines, *ends]]
    path.write_text("\n".join(texts) + "\n")
    return path
