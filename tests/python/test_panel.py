"""ci/panel: draws that repeat, bounds that are right, alarms that are counted and repeatable."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness_runs import harness  # noqa: E402

from tests.panel import __main__ as panel  # noqa: E402
from tests.panel.draw import FAMILIES, ROPES, draw  # noqa: E402
from tests.panel.table import summary, upper_bound  # noqa: E402
from tests.panel.trial import Alarm, Trial  # noqa: E402


def test_a_draw_follows_from_seed_and_index() -> None:
    assert draw(3, 8) == draw(3, 8)
    assert draw(3, 8) != draw(4, 8)
    assert draw(3, 8) != draw(3, 13)


def test_everything_is_drawn() -> None:
    draws = [draw(1, i) for i in range(200)]
    assert {d.family for d in draws} == set(FAMILIES)
    ropes = {d.config.get("rope_parameters", {}).get("rope_type") for d in draws}
    assert ropes >= set(ROPES)
    assert {d.dtype for d in draws} == {"f32", "bf16", "f16"}
    assert {(d.cache, d.chained) for d in draws} == {
        (cache, chained) for cache in (None, "dynamic", "static") for chained in (False, True)
    }
    assert {d.attention for d in draws if d.family != "gemma2"} == {"eager", "sdpa"}
    assert {d.attention for d in draws if d.family == "gemma2"} == {"eager"}
    hidden = {d.config["hidden_size"] % 2 for d in draws}
    assert hidden == {0, 1}
    assert all(any(d.left_pad or () for d in draws if d.attention == a) for a in ("eager", "sdpa"))
    assert any(d.chunks for d in draws)
    assert any(d.config.get("tie_word_embeddings") for d in draws)
    scales = [d.weight_scale for d in draws]
    assert 0.69 < min(scales) < 0.75 and 1.3 < max(scales) < 1.41


def test_the_bound_is_the_rule_of_three_and_that_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 500) == pytest.approx(1 - 0.05 ** (1 / 500), rel=1e-9)
    assert upper_bound(0, 500) == pytest.approx(3 / 500, rel=0.01)
    assert upper_bound(2, 20) == pytest.approx(0.2826, abs=1e-4)  # from tables
    assert upper_bound(5, 5) == 1.0


def test_alarms_are_counted_by_recording_checkpoint_and_kind() -> None:
    alarm = Alarm("cpu", True, "rms_norm", "f32", "gain", 1.2, "a#0", "gain 2, allowed 1", "again")
    chain = Alarm("cpu", True, "model", "f32", "KL max", 1.1, "(chain)", "KL", "again")
    bad = Trial(1, "bad", "f32", judged=10, chains=2, alarms=[alarm, alarm, chain])
    good, refused = Trial(0, "good", "f32", judged=30), Trial(2, "no", "f32", skipped="softcap")
    figures = summary([good, bad, refused])
    for name, counted in {"recordings": (1, 2), "checkpoints": (2, 40), "chains": (1, 2)}.items():
        assert (figures[name]["alarms"], figures[name]["of"]) == counted
    assert Counter({k["gate"]: k["alarms"] for k in figures["kinds"]}) == {"gain": 2, "KL max": 1}
    assert figures["skipped"] == {"softcap": 1}


def options_of(tmp_path: Path, *options: str) -> list[str]:
    files = ("--keep", str(tmp_path / "kept"), "--json", str(tmp_path / "panel.json"))
    return ["--device", "cpu", *files, *options]


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """The panel in this process: its exit code, and what it printed."""
    monkeypatch.setattr(panel, "prepare", lambda: None)  # this process is not the panel's alone

    def run_here(*options: str) -> tuple[int, str]:
        code = panel.main(options_of(tmp_path, "--jobs", "1", *options))
        return code, capsys.readouterr().out

    return run_here


@pytest.mark.nightly
def test_a_panel_that_passes_leaves_nothing(tmp_path: Path) -> None:
    options = ("--seed", "1", "--only", "1", "--jobs", "2", "--harness", harness())
    done = subprocess.run(
        [ROOT / "ci/panel", *options_of(tmp_path, *options)],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PLUMB_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "panel.json").read_text())["summary"]
    assert figures["recordings"]["of"] == 1 and figures["checkpoints"]["of"] > 20
    assert not list((tmp_path / "kept").rglob("recording.json"))


def test_a_wrong_kernel_is_an_alarm_with_the_command_that_repeats_it(
    run: Any, tmp_path: Path
) -> None:
    """The kernels are right, so eps is changed in the recording before they are judged."""
    stub = tmp_path / "harness"
    stub.write_text(
        f"""#!{sys.executable}
import pathlib, subprocess, sys
file = pathlib.Path(sys.argv[sys.argv.index("--fixture") + 1]) / "recording.json"
text = file.read_text()
file.write_text(text.replace('"eps":1e-', '"eps":7e-'))
sys.exit(subprocess.run([{harness()!r}, *sys.argv[1:]]).returncode)
"""
    )
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    index = next(i for i in range(50) if draw(1, i).dtype == "f32" and draw(1, i).family == "llama")
    code, said = run("--seed", "1", "--only", str(index), "--harness", str(stub))
    assert code == 1
    assert f"again: ci/panel --seed 1 --only {index} --device cpu" in said
    assert "rms_norm" in said and "harness --fixture" in said
    assert (tmp_path / "kept/1" / str(index) / "recording.json").is_file()


def test_with_rows_every_edit_of_the_recordings_is_noticed(run: Any, tmp_path: Path) -> None:
    code, said = run("--seed", "1", "--only", "0", "--rows", "4", "--harness", harness())
    assert code == 0
    figures = json.loads((tmp_path / "panel.json").read_text())["summary"]
    assert figures["edits"] == {"of": 4, "survived": {}} and "4 edits, 4 noticed" in said
    assert not list((tmp_path / "kept").rglob("recording.json"))


def test_an_edit_that_no_verdict_notices_is_a_failure(run: Any, tmp_path: Path) -> None:
    """This harness judges the recording as it was at first."""
    stub, first = tmp_path / "harness", tmp_path / "first"
    stub.write_text(
        f"""#!{sys.executable}
import pathlib, shutil, subprocess, sys
at = sys.argv.index("--fixture") + 1
if not pathlib.Path({str(first)!r}).exists():
    shutil.copytree(sys.argv[at], {str(first)!r})
sys.argv[at] = {str(first)!r}
sys.exit(subprocess.run([{harness()!r}, *sys.argv[1:]]).returncode)
"""
    )
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    code, said = run("--seed", "1", "--only", "0", "--rows", "4", "--harness", str(stub))
    assert code == 1
    assert "not noticed: rms_norm.eps" in said and "4 edits, 0 noticed" in said
    assert "again: ci/panel --seed 1 --only 0 --device cpu --rows 4" in said


def test_a_harness_that_breaks_down_is_no_pass(run: Any, tmp_path: Path) -> None:
    stub = tmp_path / "harness"
    stub.write_text("#!/bin/sh\necho no disk >&2\nexit 3\n")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    code, said = run("--only", "1", "--harness", str(stub))
    assert code == 1
    assert "broken" in said and "no disk" in said
