"""The recorder's statistics are the harness's: both on the same outputs of the same recordings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT, command
from safetensors.torch import save_file

from python_inspector.cases.self_check import broadcast_valid
from python_inspector.format.delta import oracle_of
from python_inspector.format.safetensors_file import read_header
from python_inspector.trace import following, fused_statistics
from python_inspector.trace.gate_statistics import Scales, layout_of, medians, ranked
from python_inspector.trace.spread import sketch_of_rows

CASES = [
    "llama-a1/decode-f32",  # gqa heads and kv_token axes
    "llama-a1/padded-decode-f32",  # rows that are not valid
    "gemma2-a4/decode-bf16",
    "zamba2-a6/decode-bf16-mixer",  # states without tokens
    "border-gemma2-2b/whole-bf16",  # chosen rows and sketches
    "border-llama3-8b/whole-f32-sdpa",
]


class Judged:
    """One recording, noisy outputs for all of it, and what `harness judge` says of them."""

    def __init__(self, case: str, tmp_path: Path) -> None:
        self.folder = ROOT / "fixtures" / case
        self.recording = json.loads((self.folder / "recording.json").read_text())
        self.files = {
            name: read_header(self.folder / entry["path"])
            for name, entry in self.recording["files"].items()
        }
        self.generator = torch.Generator().manual_seed(5)
        self.y: dict[str, torch.Tensor] = {}
        for checkpoint in self.recording["checkpoints"]:
            for name, output in checkpoint["outputs"].items():
                r = self.read(output["tensor"])
                if r.is_floating_point():
                    self.y[f"{checkpoint['id']}/{name}"] = self.noisy(r, output)
        save_file(self.y, tmp_path / "outputs.safetensors")
        said = tmp_path / "said.jsonl"
        done = command(
            "judge", str(self.folder), str(tmp_path / "outputs.safetensors"), "--json", str(said)
        )
        assert said.is_file(), done.stderr
        self.said = {}
        for line in map(json.loads, said.read_text().splitlines()):
            for output in line.get("outputs", ()):
                self.said[f"{line['checkpoint']}/{output['name']}"] = output

    def read(self, key: str) -> torch.Tensor:
        entry = self.recording["tensors"][key]
        return self.files[entry["file"]].read(entry.get("name", key))

    def noisy(self, r: torch.Tensor, output: dict[str, Any]) -> torch.Tensor:
        """r off by some thousandths; of a sampled output all rows, of random numbers."""
        if "rows" in output:
            axis = next(i for i, a in enumerate(output["axes"]) if a in ("token", "kv_token"))
            shape = list(r.shape)
            shape[axis] = output["rows"]["of"]
            return torch.randn(shape, generator=self.generator).to(r.dtype)
        off = 1 + 1e-3 * torch.randn(r.shape, generator=self.generator)
        return (r * off).to(r.dtype)

    def scales(self, output: dict[str, Any]) -> Scales:
        r = self.read(output["tensor"])
        o = r.double()
        if output["delta"] is not None:
            o = oracle_of(r, self.read(output["delta"]))
        valid = None
        if "valid" in output:
            mask = self.read(output["valid"]["tensor"])
            valid = broadcast_valid(mask, output["valid"], output).expand(o.shape)
        tokens = self.read(output["rows"]["tensor"]).tolist() if "rows" in output else None
        return Scales(layout_of(o.shape, output["axes"], tokens), o, valid, storage=r.dtype)

    def figures(self, where: str, output: dict[str, Any]) -> dict[str, float]:
        scales, every = self.scales(output), self.y[where][None]
        chosen = every
        if "rows" in output:
            axis = next(i for i, a in enumerate(output["axes"]) if a in ("token", "kv_token"))
            chosen = every.index_select(axis + 1, self.read(output["rows"]["tensor"]))
        figures = scales.statistics(chosen)
        if "sketch" in output:
            oracle, rms = (self.read(output["sketch"][name]) for name in ("oracle", "rms"))
            statistic = sketch_of_rows(output["axes"], every.shape[1:], oracle, rms)
            figures["sketch"] = statistic(every)
        return {name: float(value[0]) for name, value in figures.items()}


def said_of(output: dict[str, Any]) -> dict[str, float]:
    """The same figures by the harness."""
    statistics = output["statistics"]
    figures = {
        "tensor": statistics["E_T"],
        "element": statistics["M_E"],
        "gain": statistics["gain"],
    } | {family["family"]: family["value"] for family in statistics["families"]}
    for gate in output["gates"]:
        if gate["name"] == "sketch":
            figures["sketch"] = gate["statistic"]
    return {name: float(value) for name, value in figures.items()}


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
def test_every_statistic_is_what_the_harness_says(case: str, tmp_path: Path) -> None:
    judged = Judged(case, tmp_path)
    compared = set()
    for checkpoint in judged.recording["checkpoints"]:
        for name, output in checkpoint["outputs"].items():
            where = f"{checkpoint['id']}/{name}"
            said = judged.said.get(where)
            if said is None or not said.get("statistics"):
                continue
            ours, theirs = judged.figures(where, output), said_of(said)
            assert ours.keys() == theirs.keys(), where
            for key, value in theirs.items():
                assert math.isclose(ours[key], value, rel_tol=1e-9, abs_tol=1e-18), (where, key)
                compared.add(key)
    assert {"tensor", "token", "channel", "tile", "element", "gain"} <= compared
    assert ("sketch" in compared) == case.startswith("border")
    assert "token x head" in compared


def test_how_far_bits_are_off_and_how_many_in_a_channel() -> None:
    m = torch.randn(2, 1, 3, 8, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = m.expand(2, 4, 3, 8, 16).clone()
    y[0, 1, 0, 2, 5] *= 1.5
    y[1, 3, :, 4:, 7] *= -1
    y[1, 2, 1, 1, 1] = torch.nan
    scales = Scales(
        layout_of(m.shape[2:], ("batch", "token", "channel")), m[:, 0].double(), storage=m.dtype
    )
    figures = scales.bits(y, m, scales.noise(m))
    assert figures["bits"].tolist() == [[0, 1, 0, 0], [0, 0, 1, 12]]
    assert figures["channel bits"].tolist() == figures["bits"].tolist()
    assert figures["ulp"][0].tolist() == pytest.approx([0, 64, 0, 0], rel=2e-2)
    assert figures["ulp"][1].tolist() == pytest.approx([0, 0, 0, 256], rel=2e-2)


def test_differing_bits_are_counted_as_the_harness_counts_them(tmp_path: Path) -> None:
    judged = Judged("gemma2-a4/decode-bf16", tmp_path)
    norms = [c for c in judged.recording["checkpoints"] if c["block"] == "rms_norm"]
    outputs, expected = {}, {}
    for count, checkpoint in enumerate(norms[:6]):
        output = checkpoint["outputs"]["out"]
        r = judged.read(output["tensor"])
        y = r.clone().flatten()
        y[: 3 * count] *= 1.5
        y[-1] = 0.0 * -y[-1].sign()
        where = f"{checkpoint['id']}/out"
        outputs[where] = y.reshape(r.shape)
        differ = judged.scales(output).differing(outputs[where][None], r[None])
        expected[where] = int(differ[0])
        assert expected[where] == 3 * count + 1
    save_file(outputs, tmp_path / "bits.safetensors")
    said = tmp_path / "bits.jsonl"
    command("judge", str(judged.folder), str(tmp_path / "bits.safetensors"), "--json", str(said))
    found = {
        f"{line['checkpoint']}/out": line["outputs"][0]["conformance"]["differ"]
        for line in map(json.loads, said.read_text().splitlines())
        if line["type"] == "checkpoint" and f"{line['checkpoint']}/out" in outputs
    }
    assert found == expected


def test_signs_of_zero_and_not_a_numbers_are_no_difference() -> None:
    o = torch.ones(1, 2, 8)
    scales = Scales(layout_of(o.shape, ("batch", "token", "channel")), o, storage=torch.float32)
    m = o.bfloat16()
    m[0, 0, :2] = torch.tensor([0.0, torch.nan])
    y = m.clone()
    y[0, 0, 0] = -0.0
    assert scales.differing(y[None], m[None]).tolist() == [0]
    y[0, 1, 3] = 2.0
    assert scales.differing(y[None], m[None]).tolist() == [1]


def test_a_not_a_number_beats_every_other_error() -> None:
    o = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    scales = Scales(layout_of(o.shape, ("batch", "token", "channel")), o, storage=torch.float32)
    y = torch.stack([o, o])
    y[1, 0, 0, 0] = torch.nan
    figures = scales.statistics(y)
    for values in figures.values():
        assert float(values[0]) == 0
        assert math.isnan(float(values[1]))


SHAPES: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    (("batch", "token", "channel"), (2, 37, 300)),
    (("batch", "token", "head", "channel"), (1, 64, 4, 16)),
    (("batch", "head", "token", "channel"), (1, 4, 24, 20)),
    (("batch", "token", "head", "channel"), (1, 64, 4, 12)),
    (("batch", "channel"), (16, 64)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("axes", "shape"), SHAPES)
def test_an_accelerator_finds_the_same_in_fewer_passes(
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(1)
    o = torch.randn(2, *shape, generator=generator).double()
    off = 1 + 2e-3 * torch.randn(2, 5, *shape, generator=generator)
    y = (o[:, None] * off).to(dtype)
    y[1, 2].view(-1)[7] = torch.nan
    scales = Scales(layout_of(shape, axes), o, storage=torch.float32)
    expected = scales.statistics(y)
    monkeypatch.setattr(fused_statistics, "is_host", lambda device: False)
    monkeypatch.setattr(Scales, "statistics", None)  # the other way
    found = fused_statistics.statistics(scales, y)
    assert list(found) == list(expected)
    for name, values in found.items():
        assert values.dtype == torch.float64 and values.shape == (2, 5)
        small = 1e-5 * expected["tensor"] if name == "gain" else 1e-5 * expected[name]
        good = (values - expected[name]).abs() <= small
        assert good.sum() == 9 and math.isnan(values[1, 2]) and math.isnan(expected[name][1, 2])


@pytest.mark.parametrize("scale", [1e-30, 1e30, 0.0])
def test_what_float32_has_no_room_for_is_found_in_float64(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    o = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1)).double()
    o *= scale
    scales = Scales(layout_of(o.shape, ("batch", "token", "channel")), o, storage=torch.float32)
    y = o[None] * (1 + 1e-3 * torch.ones(3, 1, 1, 1))
    expected = scales.statistics(y)
    monkeypatch.setattr(fused_statistics, "is_host", lambda device: False)
    for name, values in fused_statistics.statistics(scales, y).items():
        assert torch.equal(values, expected[name])


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (8,), (3, 5), (4, 6), (2, 3, 8), (5, 1)])
def test_medians_without_sorting_are_those_of_sorted_values(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values = values.mul(4).round()  # equal ones, too
    assert torch.equal(medians(values, complete=True), medians(values))
    ordered = values.sort(-1).values
    for place in range(shape[-1]):
        assert torch.equal(ranked(values, place), ordered[..., place])


def test_few_pairs_are_counted_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    columns = torch.randint(0, 3, (60,), generator=generator)
    m, y = (torch.randint(0, 4, (60,), generator=generator).double() for _ in range(2))
    m[5], y[6], m[7] = torch.nan, torch.nan, -0.0
    counts = [following._crowd(columns[:n], m[:n], y[:n]) for n in (0, 1, 9, 60)]
    monkeypatch.setattr(following, "FEW_PAIRS", -1)
    assert counts == [following._crowd(columns[:n], m[:n], y[:n]) for n in (0, 1, 9, 60)]
    assert counts[-1] > 1
