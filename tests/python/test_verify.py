"""verify(): its own part against a stand-in for the harness, and the whole with the real one."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy_kernels import rms_norm
from safetensors.torch import load_file

import python_inspector
from python_inspector.errors import HarnessError
from python_inspector.native import find_harness

CORPUS = Path(__file__).parents[1] / "data" / "recordings"
FIXTURE = Path(__file__).parents[2] / "fixtures" / "llama-a1" / "whole-f32"
NORM = r"^model\.norm#0$"

STAND_IN = """#!{python}
import json, struct, sys
from pathlib import Path
import numpy as np  # not torch: it takes seconds to import

TYPES = {{"F64": "f8", "F32": "f4", "BF16": "u2", "BOOL": "u1"}}

def load(path):
    data = Path(path).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:end]).items():
        begin, stop = entry["data_offsets"]
        yield name, entry["dtype"], entry["shape"], data[end + begin : end + stop]

def save(path, tensors):
    header, payload = {{}}, b""
    for name, dtype, shape, data in tensors:
        offsets = [len(payload), len(payload) + len(data)]
        header[name] = {{"dtype": dtype, "shape": shape, "data_offsets": offsets}}
        payload += data
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + payload)

def upcast(name, dtype, shape, data):
    if dtype != "BF16":
        return name, dtype, shape, data
    wide = np.frombuffer(data, "u2").astype("u4") << 16
    return name, "F32", shape, wide.tobytes()

command, arguments = sys.argv[1], sys.argv[2:]
log = Path({log!r})
log.write_text(json.dumps(sys.argv[1:]) + "\\n" + (log.read_text() if log.exists() else ""))
recording = json.loads((Path(arguments[0]) / "recording.json").read_text())
if command == "export":
    if {fail!r}:
        print("warming up\\nsomething broke", file=sys.stderr)
        sys.exit(3)
    folder = Path(arguments[1])
    keys = {{entry.get("name", key): key for key, entry in recording["tensors"].items()}}
    tensors = [
        (keys[name], *rest)
        for file in recording["files"].values()
        for name, *rest in load(Path(arguments[0]) / file["path"])
    ]
    if "--upcast" in arguments:
        tensors = [upcast(*tensor) for tensor in tensors]
    save(folder / "tensors.safetensors", sorted(tensors, key=lambda t: t[1] == "BOOL"))
    chosen = recording["checkpoints"] if "--block" not in arguments else []
    (folder / "checkpoints.json").write_text(json.dumps({{
        "recording": arguments[0],
        "dtype": "bf16",
        "checkpoints": [
            {{k: c[k] for k in ("id", "block", "params", "inputs", "weights", "outputs")}}
            for c in chosen
        ],
    }}))
else:
    totals = {{}}
    for name, dtype, shape, data in load(arguments[1]):
        checkpoint = name.rsplit("/", 1)[0]
        total = float(np.frombuffer(data, TYPES[dtype]).sum())
        totals[checkpoint] = totals.get(checkpoint, 0) + total
    lines = [{{"environment": {{}}}}]
    for checkpoint in sorted(totals)[: {verdicts}]:
        total = totals[checkpoint]
        lines.append({{"checkpoint": checkpoint, "block": "any", "reason": "",
                      "status": "pass" if total else "fail", "total": total}})
    lines.append({{"counts": {{}}}})
    text = "\\n".join(map(json.dumps, lines)) + "\\n"
    Path(arguments[arguments.index("--json") + 1]).write_text(text)
    sys.exit(1)
"""


def stand_in(folder: Path, *, fail: bool = False, verdicts: int = 99) -> Path:
    """A program that follows the harness's protocol for export and judge, and logs its calls."""
    path = folder / "stand-in"
    log = str(folder / "log")
    path.write_text(STAND_IN.format(python=sys.executable, log=log, fail=fail, verdicts=verdicts))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_function_gets_inputs_weights_and_params(tmp_path: Path) -> None:
    calls: list[tuple[Any, Any, Any]] = []

    def function(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        calls.append((inputs, weights, params))
        return torch.ones(1, 3, 8)

    good = CORPUS / "good"
    verdicts = python_inspector.verify(function, good, harness=stand_in(tmp_path))
    assert [verdict.checkpoint for verdict in verdicts] == ["m#0", "m:add#0"]
    assert all(verdict.passed and verdict.figures["total"] == 24 for verdict in verdicts)
    stored = load_file(good / "tensors.safetensors")
    inputs, weights, params = calls[0]
    assert torch.equal(inputs["x"], stored["t0"]) and inputs["x"].dtype == torch.bfloat16
    assert list(weights) == ["weight"] and params["eps"] == 1e-5
    assert set(calls[1][0]) == {"a", "b"} and calls[1][1] == {}


def test_numpy_arrays_are_float32(tmp_path: Path) -> None:
    def function(inputs: Any, weights: Any, params: Any) -> Any:
        arrays = [*inputs.values(), *weights.values()]
        assert all(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in arrays)
        return {"out": np.zeros((1, 3, 8))}

    binary = stand_in(tmp_path)
    verdicts = python_inspector.verify(function, CORPUS / "good", arrays="numpy", harness=binary)
    assert [verdict.status for verdict in verdicts] == ["fail", "fail"]
    assert not any(verdict.passed for verdict in verdicts)
    assert "--upcast" in (tmp_path / "log").read_text()


def test_the_selection_is_handed_on(tmp_path: Path) -> None:
    def function(*_: Any) -> torch.Tensor:
        return torch.ones(1)

    binary = stand_in(tmp_path)
    python_inspector.verify(function, CORPUS / "good", "m#0", contract="fused", harness=binary)
    judged, exported = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert exported[0] == "export" and exported[-2:] == ["--checkpoint", "m#0"]
    assert judged[0] == "judge" and judged[3:5] == ["--contract", "fused"]
    assert "--no-margins" not in judged
    with pytest.raises(HarnessError, match=r"no checkpoint of .*good was selected"):
        python_inspector.verify(function, CORPUS / "good", block="sdpa", harness=binary)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"y": torch.ones(1)}, "the function returned ['y'], expected ['out']"),
        ("text", "output out is a str, not an array or a tensor"),
        ({"out": [1.0]}, "output out is a list, not an array or a tensor"),
    ],
)
def test_what_the_function_returns_is_checked(tmp_path: Path, returned: Any, message: str) -> None:
    verdicts = python_inspector.verify(
        lambda *_: returned, CORPUS / "good", harness=stand_in(tmp_path)
    )
    assert [(verdict.status, verdict.reason) for verdict in verdicts] == [("error", message)] * 2


def test_an_exception_costs_its_checkpoint_alone(tmp_path: Path) -> None:
    def function(inputs: Any, weights: Any, params: Any) -> Any:
        if "x" in inputs:
            raise ZeroDivisionError("mine")
        return torch.ones(1, 3, 8)

    lost, judged = python_inspector.verify(function, CORPUS / "good", harness=stand_in(tmp_path))
    assert (lost.checkpoint, lost.status, lost.passed) == ("m#0", "error", False)
    line = function.__code__.co_firstlineno + 2
    assert lost.reason == f"ZeroDivisionError: mine ({__file__}:{line})"
    assert judged.passed
    assert str(lost).startswith("m#0 (rms_norm): error: ZeroDivisionError: mine")


def test_what_the_function_does_not_do_is_unsupported(tmp_path: Path) -> None:
    def function(*_: Any) -> Any:
        raise python_inspector.Unsupported("no norms here")

    verdicts = python_inspector.verify(function, CORPUS / "good", harness=stand_in(tmp_path))
    assert {(v.status, v.reason) for v in verdicts} == {("unsupported", "no norms here")}
    judged = (tmp_path / "log").read_text()
    assert "judge" not in judged  # there is nothing to judge


def test_a_fourth_argument_is_the_call(tmp_path: Path) -> None:
    calls: list[Any] = []

    def positional(inputs: Any, weights: Any, params: Any, call: python_inspector.Call) -> Any:
        calls.append(call)
        return torch.ones(1, 3, 8)

    def named(inputs: Any, weights: Any, params: Any, *, call: python_inspector.Call) -> Any:
        return positional(inputs, weights, params, call)

    def of_its_own(inputs: Any, weights: Any, params: Any, eps: float = 1e-5) -> Any:
        assert eps == 1e-5
        return torch.ones(1, 3, 8)

    for function in (positional, named, of_its_own):
        verdicts = python_inspector.verify(function, CORPUS / "good", harness=stand_in(tmp_path))
        assert all(verdict.passed for verdict in verdicts), verdicts
    assert [(c.checkpoint, c.block, c.dtype) for c in calls[:2]] == [
        ("m#0", "rms_norm", "bf16"),
        ("m:add#0", "add", "bf16"),
    ]
    assert len(calls) == 4 and calls[2:] == calls[:2]
    assert calls[0].config == json.loads((CORPUS / "good" / "recording.json").read_text())["config"]


def test_the_harnesss_last_words_are_repeated(tmp_path: Path) -> None:
    binary = stand_in(tmp_path, fail=True)
    with pytest.raises(HarnessError, match="harness export ended with 3: something broke"):
        python_inspector.verify(lambda *_: None, CORPUS / "good", harness=binary)


def test_a_checkpoint_without_a_verdict_is_an_error(tmp_path: Path) -> None:
    binary = stand_in(tmp_path, verdicts=1)
    with pytest.raises(HarnessError, match="no verdict for 1 of 2 checkpoints, such as m:add#0"):
        python_inspector.verify(lambda *_: torch.ones(1), CORPUS / "good", harness=binary)


def test_finding_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = stand_in(tmp_path)
    monkeypatch.setenv("PLUMB_HARNESS", str(binary))
    assert find_harness() == binary
    monkeypatch.setenv("PLUMB_HARNESS", str(tmp_path / "nothing"))
    with pytest.raises(HarnessError, match="PLUMB_HARNESS"):
        find_harness()
    assert find_harness(binary) == binary
    monkeypatch.delenv("PLUMB_HARNESS")
    named = tmp_path / "harness"
    binary.rename(named)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_harness() == named


# With the real harness.


def test_a_right_and_a_wrong_kernel_are_told_apart(harness: Path) -> None:
    def unscaled(inputs: Any, weights: Any, params: Any) -> Any:
        return rms_norm(inputs, {"weight": np.ones_like(weights["weight"])}, params)

    for function, status in ((rms_norm, "pass"), (unscaled, "fail")):
        (verdict,) = python_inspector.verify(
            function, FIXTURE, NORM, arrays="numpy", harness=harness
        )
        assert (verdict.checkpoint, verdict.block) == ("model.norm#0", "rms_norm")
        assert verdict.status == status, verdict.figures


def test_sixteen_bit_tensors_arrive_as_they_are(harness: Path) -> None:
    seen: list[torch.dtype] = []

    def function(inputs: Any, weights: Any, params: Any) -> Any:
        seen.append(inputs["x"].dtype)
        x = inputs["x"].float()
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + params["eps"])
        return weights["weight"] * normed.to(inputs["x"].dtype)

    fixture = FIXTURE.parent / "decode-bf16"
    (verdict,) = python_inspector.verify(function, fixture, NORM, harness=harness)
    assert verdict.passed, verdict.figures
    (verdict,) = python_inspector.verify(function, fixture, NORM, upcast=True, harness=harness)
    assert seen == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("shape", [(), (3, 3), (2, 3, 4), (2, 15, 33)])
def test_another_shape_fails_with_both(harness: Path, shape: tuple[int, ...]) -> None:
    def function(inputs: Any, weights: Any, params: Any) -> Any:
        return np.zeros(shape, np.float32)

    for fixture in (FIXTURE, FIXTURE.parent / "decode-bf16"):
        (verdict,) = python_inspector.verify(
            function, fixture, NORM, arrays="numpy", harness=harness
        )
        assert verdict.status == "fail"
        assert f"{list(shape)}, expected " in verdict.reason


def test_several_outputs_are_judged_by_name(harness: Path) -> None:
    def rotary(inputs: Any, weights: Any, params: Any) -> dict[str, Any]:
        def turn(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, -1)
            rotated = torch.cat([-second, first], -1)
            return x * inputs["cos"].unsqueeze(1) + rotated * inputs["sin"].unsqueeze(1)

        return {"q": turn(inputs["q"]), "k": turn(inputs["k"])}

    verdicts = python_inspector.verify(rotary, FIXTURE, block="rotary", harness=harness)
    assert len(verdicts) == 3
    assert all(verdict.passed for verdict in verdicts), verdicts


def test_nothing_selected_is_an_error(harness: Path) -> None:
    with pytest.raises(HarnessError):
        python_inspector.verify(rms_norm, FIXTURE, "no such checkpoint", harness=harness)


def test_a_row_that_is_not_stored_is_judged_by_its_sketch(harness: Path) -> None:
    fixture = FIXTURE.parents[1] / "border-odd" / "whole-f32"
    checkpoint = r"odd_linear#3$"

    def linear(inputs: Any, weights: Any, params: Any) -> Any:
        return torch.nn.functional.linear(inputs["x"], weights["weight"], weights["bias"])

    def one_row_wrong(inputs: Any, weights: Any, params: Any) -> Any:
        out = linear(inputs, weights, params)
        out[0, 20, 64:128] = 0
        return out

    (verdict,) = python_inspector.verify(linear, fixture, checkpoint, harness=harness)
    assert verdict.passed
    assert "65 rows and a sketch of all" in verdict.figures["details"][0]
    (verdict,) = python_inspector.verify(one_row_wrong, fixture, checkpoint, harness=harness)
    assert verdict.status == "fail"
    failed = [gate["name"] for gate in verdict.figures["outputs"][0]["gates"] if not gate["passed"]]
    assert failed == ["sketch", "sketch gain"]
    assert verdict.reason.endswith("where: token 20")


def test_operands_lie_on_the_device_that_is_named(harness: Path) -> None:
    seen: set[str] = set()

    def norm(inputs: Any, weights: Any, params: Any) -> Any:
        seen.update(t.device.type for t in (*inputs.values(), *weights.values()))
        raise python_inspector.Unsupported("no more is asked")

    python_inspector.verify(norm, "llama-a1/whole-f32", "model.norm#0", device="meta")
    assert seen == {"meta"}
    with pytest.raises(ValueError, match="device is 'meta', which is for torch tensors"):
        python_inspector.verify(norm, "llama-a1/whole-f32", device="meta", arrays="numpy")
