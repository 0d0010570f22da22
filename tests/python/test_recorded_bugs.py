"""Members and planted bugs in recordings, and the survey over architectures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import asked
from safetensors import safe_open

from python_inspector import record
from python_inspector.cases import bug_page
from python_inspector.cases.bug_survey import Alarm, Found, Place, Survey
from python_inspector.cli import inspector as cli
from python_inspector.format.validate import validate
from python_inspector.models.any_tiny import build_any
from python_inspector.trace.resolution import Fate

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.RecordWarning")


def recorded(folder: Path, dtype: torch.dtype, **options: Any) -> dict[str, Any]:
    model = build_any("apertus", dtype, "eager", 3)
    with record(model, *asked(folder, layers=[0], **options)), torch.no_grad():
        ids = torch.arange(5, 21).view(2, 8)
        cached = model(ids, use_cache=True).past_key_values
        model(ids[:, :1], past_key_values=cached)
    assert validate(folder) == []
    result: dict[str, Any] = json.loads((folder / "recording.json").read_text())
    return result


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("bugs") / "bf16"
    return folder, recorded(folder, torch.bfloat16)


@pytest.mark.nightly
def test_first_calls_have_bugs_and_16_bit_outputs_members(
    bf16: tuple[Path, dict[str, Any]],
) -> None:
    checkpoints = {c["id"]: c for c in bf16[1]["checkpoints"]}
    first, second = (checkpoints[f"model.layers.0.self_attn.q_norm#{call}"] for call in (0, 1))
    assert len(first["bugs"]) > 10 and "bugs" not in second
    margins = [bug["margin"] for bug in first["bugs"]]
    assert margins == sorted(margins)
    members = first["outputs"]["out"]["members"]
    assert members[0]["name"] == "rounds once, at the output"
    assert "members" in second["outputs"]["out"]
    native = [c for c in bf16[1]["checkpoints"] if c["block"] != "module"]
    assert native and all("bugs" not in c for c in native)


def test_the_values_of_a_bug_are_what_it_gives(bf16: tuple[Path, dict[str, Any]]) -> None:
    """The sign of the norm's last product flipped: the model's values, negative."""
    folder, recording = bf16
    checkpoint = next(
        c for c in recording["checkpoints"] if c["id"] == "model.layers.0.self_attn.q_norm#0"
    )
    bug = next(b for b in checkpoint["bugs"] if b["name"] == "the sign of mul #1 is flipped")
    with safe_open(folder / "tensors.safetensors", "pt") as file:
        at, values = file.get_tensor(bug["at"]), file.get_tensor(bug["values"])
        r = file.get_tensor(checkpoint["outputs"]["out"]["tensor"]).flatten()
    assert bool((at[1:] > at[:-1]).all()) and len(at) == 64
    torch.testing.assert_close(values, -r[at].float(), rtol=2**-7, atol=0)
    assert bug["margin"] > 100


def test_without_bugs_there_are_none(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "none", torch.bfloat16, bugs=False)
    assert all("bugs" not in c for c in recording["checkpoints"])
    outputs = [o for c in recording["checkpoints"] for o in c["outputs"].values()]
    assert all("members" not in output for output in outputs)


def found(dtype: str, bug: str, kind: str, margin: float, fate: Fate) -> Found:
    return Found(Place("m", "TinyNorm", "model.norm#0"), dtype, bug, kind, margin, fate)


def surveyed() -> Survey:
    return Survey(
        "m",
        [
            found("bf16", "mul #0 is skipped", "skip", 0.5, Fate.SURVIVES),
            found("f32", "mul #0 is skipped", "skip", 90.0, Fate.KILLED),
            found("f32", "eps", "constant", 0.4, Fate.SURVIVES),
            found("bf16", "eps", "constant", 0.1, Fate.BELOW_RESOLUTION),
            found("f32", "shifted", "shift", 0.1, Fate.SAME_FUNCTION),
        ],
        same_bits=7,
        judged=30,
        alarms=[Alarm(Place("m", "TinyNorm", "model.norm#0"), "f32", "2 threads", "out", 1.5)],
    )


def test_a_bug_counts_once_killed_in_any_dtype() -> None:
    text = "\n".join(bug_page.text([surveyed()]))
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["skip"][1:] == ["100.0", "%", "0.0", "%", "1", "1", "100.0", "%", "0", "0"]
    assert rows["constant"][1:] == ["0.0", "%", "-", "0", "1", "0.0", "%", "0", "0"]
    assert rows["shift"][-2:] == ["1", "0"]
    assert "1 of 2 bugs killed (50.0 %)" in text and "7 more changed no bit" in text
    assert "1 false alarms among 30" in text and "2 threads: out at 1.5 of its limit" in text
    assert "- m TinyNorm: eps (f32 0.4, bf16 0.1)" in text


def test_surveys_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = Survey.from_json(surveyed().to_json())
    assert again == surveyed()
    words = ["bugs", "gpt2", "--tokens", "5", "--seed", "2", "--most", "4", "--kept", str(tmp_path)]
    assert cli.main(words) == 0
    first = capsys.readouterr().out
    assert "1 architectures" in first and " 0 false alarms" in first
    (kept,) = tmp_path.glob("*.json")
    assert {f.kind for f in Survey.from_json(kept.read_text()).found} >= {"skip", "sign", "shift"}
    kept.write_text(surveyed().to_json())
    assert cli.main([*words, "--markdown"]) == 3  # a false alarm
    assert "| skip | 100.0 % | 0.0 % | 1 | 1 |" in capsys.readouterr().out


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bugs", "no_such"]) == 2
    assert "no architecture 'no_such'" in capsys.readouterr().err
    assert cli.main(["bugs", "gpt2", "--most", "0"]) == 2
    assert "--most 0, expected at least 1" in capsys.readouterr().err
