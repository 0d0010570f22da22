"""The good recordings, and the small one that every bad one is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from python_inspector.format.generator import UNIT, Generator, generate
from python_inspector.format.recording import (
    Checkpoint,
    Contract,
    OutputRef,
    SampledRef,
    SimulatedRef,
    TensorRef,
)
from python_inspector.format.sampled import sketch, take
from python_inspector.format.writer import RecordingWriter
from python_inspector.trace.spread import judged, spread_of

HIDDEN = ("batch", "token", "channel")


def write_good(out: Path, weights_path: Path | None = None) -> None:
    """Two checkpoints with real figures: an rms_norm in bf16 with a validity mask, and an add."""
    x, weight = _values()
    with RecordingWriter(out, weights_path=weights_path) as writer:
        normed = _write_norm(writer, x, weight)
        added = output_of(writer, x + normed, x.double() + normed.double())
        inputs = {"a": ref(writer, x), "b": ref(writer, normed)}
        writer.checkpoint(
            Checkpoint("m:add#0", "add", "m", "add", 0, 0, "eager", {}, inputs, {}, {"out": added})
        )
        writer.note(limit=float("inf"))
        writer.commit(header(out.name))


def write_sampled(out: Path) -> None:
    """An rms_norm of generated tensors in bf16, of which two of five rows are stored."""
    rules = {"x": Generator(1, UNIT), "weight": Generator(2, UNIT - 2, 1)}
    x = generate(rules["x"], torch.bfloat16, (1, 5, 8))
    weight = generate(rules["weight"], torch.bfloat16, (8,))
    accumulator = {"bits": 24, "rounding": "nearest"}
    r, o = rms_norm(x, weight), rms_norm(x.double(), weight.double())
    whole, tokens = sketch(r, o, HIDDEN, "test"), [0, 4]
    with RecordingWriter(out) as writer:
        writer.contract("eager", Contract("bf16", "f32", accumulator, "eager"))
        writer.generated(x, rules["x"])
        writer.generated(weight, rules["weight"])
        inputs = {"x": ref(writer, x)}
        output = output_of(writer, take(r, HIDDEN, tokens), take(o, HIDDEN, tokens))
        tables = (torch.tensor(tokens), whole.reference, whole.oracle, whole.rms)
        indices, *sketches = (writer.tensor(table) for table in tables)
        output.sampled = SampledRef(indices, 5, *sketches)
        writer.tensor(torch.tensor([4, 0]))  # for a fault
        writer.checkpoint(
            Checkpoint(
                "m#0", "rms_norm", "m", None, 0, 0, "eager",
                {"eps": 1e-5, "weight_offset": 0, "rounding": "before"},
                inputs, {"weight": writer.weight("m.weight", weight)}, {"out": output},
            )
        )  # fmt: skip
        writer.commit(header(out.name))


def write_simulated(out: Path) -> None:
    """The norm with everything that is known of simulated kernels, and an add in float32."""
    x, weight = _values()
    with RecordingWriter(out) as writer:
        normed = _write_norm(writer, x, weight, simulated=True)
        a = normed.float()
        total = output_of(writer, a + 0.1, a.double() + 0.1)
        samples = (a + 0.1).expand(3, *a.shape)
        scales = judged((a + 0.1).double(), HIDDEN, None, None, a.dtype)
        total.simulated = SimulatedRef(spread_of(scales, samples), narrow=False)
        writer.contract(
            "float32", Contract("f32", "f32", {"bits": 24, "rounding": "nearest"}, "eager")
        )
        writer.tensor(torch.tensor([5, 2]))  # for faults: t8 and on
        writer.tensor(torch.tensor([2, 24]))
        writer.tensor(torch.tensor([2]))
        writer.tensor(torch.tensor([-1, 2]))
        writer.tensor(torch.tensor([[2, 5]]))
        writer.tensor(torch.tensor([0.5, 2.0]))
        writer.checkpoint(
            Checkpoint(
                "m:plus#0", "add_scalar", "m", "plus", 0, 0, "float32", {"value": 0.1},
                {"x": ref(writer, a)}, {}, {"out": total},
                trace=writer.trace([{"op": "add", "stores": "f32"}]),
            )
        )  # fmt: skip
        writer.commit(header(out.name))


def _add_samples(writer: RecordingWriter, output: OutputRef, r: torch.Tensor) -> None:
    """A rounded model with other bits in two places, and three simulated kernels."""
    m = r.clone().flatten()
    at = torch.tensor([9, 20])
    m[at] *= 1.01
    samples = m.reshape(r.shape).expand(4, *r.shape).clone()
    samples[1, 0, 1, :2] *= 1.01
    valid = torch.tensor([[False, True, True]])[..., None]
    figures = spread_of(judged(r.double(), HIDDEN, valid, None, r.dtype), samples)
    keys = (writer.tensor(at), writer.tensor(m[at]))
    output.simulated = SimulatedRef(figures, narrow=True, model=keys, truncated=dict(figures))
    output.unstable = 1e-3


def write_small(out: Path, weights_path: Path) -> None:
    """The first checkpoint alone: what every bad recording is made from."""
    with RecordingWriter(out, weights_path=weights_path) as writer:
        _write_norm(writer, *_values())
        writer.commit(header("bad"))


def _values() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 3, 8, generator=generator)
    weight = 1 + 0.3 * torch.randn(8, generator=generator)
    return x.bfloat16(), weight.bfloat16()


def _write_norm(
    writer: RecordingWriter, x: torch.Tensor, weight: torch.Tensor, *, simulated: bool = False
) -> torch.Tensor:
    accumulator = {"bits": 24, "rounding": "nearest"}
    writer.contract("eager", Contract("bf16", "f32", accumulator, "eager"))
    normed = rms_norm(x, weight)
    oracle = rms_norm(x.double(), weight.double())
    valid = torch.tensor([[False, True, True]])
    inputs, trace = {"x": ref(writer, x)}, None
    output = output_of(writer, normed, oracle, valid)
    if simulated:
        _add_samples(writer, output, normed)
        trace = writer.trace(
            [
                {"op": "mean", "stores": "f32", "terms": 8},
                {"op": "_to_copy", "stores": "bf16"},
                {"op": "mul", "stores": "bf16"},
            ]
        )
    writer.checkpoint(
        Checkpoint(
            "m#0",
            "rms_norm",
            "m",
            None,
            0,
            0,
            "eager",
            {"eps": 1e-5, "weight_offset": 0, "rounding": "before"},
            inputs,
            {"weight": writer.weight("m.weight", weight)},
            {"out": output},
            trace=trace,
        )
    )
    return normed


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """LLaMA's: statistics in float32 at least, rounded to x's dtype before the weight."""
    wide = x.float() if x.dtype == torch.bfloat16 else x
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return weight * normed.to(x.dtype)


def ref(writer: RecordingWriter, t: torch.Tensor) -> TensorRef:
    return TensorRef(writer.tensor(t), HIDDEN)


def output_of(
    writer: RecordingWriter, r: torch.Tensor, o: torch.Tensor, valid: torch.Tensor | None = None
) -> OutputRef:
    delta = (o - r.double()).float()
    kept = torch.ones_like(r, dtype=torch.bool) if valid is None else valid[..., None]
    kept = kept.expand_as(r)
    error = (delta.double()[kept].square().sum() / o[kept].square().sum()).sqrt().item()
    where = None if valid is None else TensorRef(writer.tensor(valid), ("batch", "token"))
    return OutputRef(writer.tensor(r), HIDDEN, writer.tensor(delta), error, where)


def header(name: str) -> dict[str, Any]:
    versions = ("python_inspector", "torch", "transformers", "python", "platform")
    return {
        "name": f"test/{name}",
        "provenance": {
            "created": "2026-01-01T00:00:00Z",
            "command": "test",
            "producer": dict.fromkeys(versions, "test"),
            "architecture": "TestModel",
            "model_type": "test",
            "dtype": "bf16",
            "attention": None,
            "model": {"source": "test", "seed": 3, "revision": None, "weights_sha256": None},
            "run": {
                "mode": "whole", "batch": 1, "tokens": 3, "steps": 0,
                "chunks": None, "left_pad": None, "cache": None,
            },
        },
        "config": {},
        "network": [
            {
                "path": "m",
                "class": "RMSNorm",
                "parameters": {"weight": {"dtype": "bf16", "shape": [8], "tied": None}},
            }
        ],
    }  # fmt: skip
