"""Shares of a recording that processes left behind: taken over, made again, refused or removed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_joined import checkpoints, require_same
from test_processes import names, saved_model, words

from python_inspector.cases import run as cases
from python_inspector.cli import inspector as cli

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def unjoined(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with what a command leaves that was interrupted before it joined what the process
    beside it had recorded; and a copy."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("unjoined")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "join", interrupted)
        assert cli.main(words(model, folder / "x", "--steps 1 --jobs 2")) == 130
    copy = tmp_path_factory.mktemp("copy") / "unjoined"
    shutil.copytree(folder, copy)
    return folder, copy


@pytest.fixture
def share(unjoined: tuple[Path, Path]) -> Path:
    """What the process beside it recorded."""
    folder, copy = unjoined
    shutil.rmtree(folder)  # a recording is resumed where it was begun
    shutil.copytree(copy, folder)
    return folder / ".x.stretch-1.1-2.0"


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by one process."""
    out = tmp_path_factory.mktemp("whole") / "x"
    assert cli.main(words(model, out, "--steps 1 --jobs 1")) == 0
    return out


def resumed(model: Path, share: Path) -> int:
    """The command's exit code."""
    return cli.main(words(model, share.parent / "x", "--steps 1 --jobs 2 --resume"))


def test_a_finished_share_is_taken_over_when_the_command_is_resumed(
    model: Path, share: Path
) -> None:
    recording, said = share / "recording.json", share / ".share"
    recording.write_text(recording.read_text().replace('"notes": {', '"notes": {"kept": true, ', 1))
    sha256 = hashlib.sha256(recording.read_bytes()).hexdigest()
    said.write_text(json.dumps(json.loads(said.read_text()) | {"sha256": sha256}))
    assert resumed(model, share) == 0
    found = json.loads((share.parent / "x" / "recording.json").read_text())
    assert found["provenance"]["notes"]["kept"]
    assert {c["step"] for c in checkpoints(share.parent / "x")} == {0, 1}
    assert names(share.parent) == ["x"]


def flipped(file: Path) -> None:
    """A bit in its middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def other_digit(file: Path) -> None:
    text = file.read_text()
    at = text.index('"error": ') + len('"error": ')
    file.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tensors.safetensors", flipped),
        ("tensors.safetensors", Path.unlink),
        ("recording.json", other_digit),
        ("recording.json", cut_short),
        (".share", cut_short),
    ],
)
def test_a_share_that_was_damaged_is_made_again(
    name: str, damage: Callable[[Path], Any], model: Path, share: Path, whole: Path
) -> None:
    damage(share / name)
    assert resumed(model, share) == 0
    require_same(share.parent / "x", whole)
    assert names(share.parent) == ["x"]


def test_a_share_of_another_run_is_refused_and_all_stays(
    model: Path, share: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.loads((share / ".share").read_text())
    said["run"]["config"]["rms_norm_eps"] = 0.5
    (share / ".share").write_text(json.dumps(said))
    left = names(share.parent)
    assert resumed(model, share) == 3
    expected = f"{share}: run.config.rms_norm_eps is 0.5, this run has "
    assert expected in capsys.readouterr().err
    assert [name.rstrip("0123456789") for name in names(share.parent)] == [
        name.rstrip("0123456789") for name in left
    ]


def test_what_was_finished_stays_where_a_share_has_other_weights(
    model: Path, share: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording, said = share / "recording.json", share / ".share"
    content = json.loads(recording.read_text())
    weight = next(t for t in content["tensors"].values() if "name" in t)
    weight["sha256"] = "0" * 64
    recording.write_text(json.dumps(content))
    sha256 = hashlib.sha256(recording.read_bytes()).hexdigest()
    said.write_text(json.dumps(json.loads(said.read_text()) | {"sha256": sha256}))
    assert resumed(model, share) == 3
    assert f"weight {weight['name']} has SHA-256 " in capsys.readouterr().err
    assert any(name.startswith(".x.partial-") for name in names(share.parent))
    assert share.name in names(share.parent)


def test_what_shares_left_goes_when_there_is_nothing_to_resume(model: Path, tmp_path: Path) -> None:
    given = words(model, tmp_path / "x", "--no-oracle --jobs 1")
    assert cli.main(given) == 0
    (tmp_path / ".x.stretch-0.1-1.0").mkdir()
    assert cli.main([*given, "--resume"]) == 0
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["x", ".x"])
@pytest.mark.parametrize("left", [".{}.stretch-1.0-3.0", "..{}.stretch-1.0-3.0.partial-999999999"])
def test_without_resume_what_other_shares_left_goes(
    left: str, name: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / left.format(name)).mkdir()
    (tmp_path / left.format(name) / ".payloads").write_bytes(b"\0" * 100)
    given = words(model, tmp_path / name, "--no-oracle --jobs 1 --steps 2 --calls 2,1,1")
    assert cli.main(given) == 0
    assert names(tmp_path) == [name]
    assert {c["step"] for c in checkpoints(tmp_path / name)} == {1, 2}


def test_a_share_of_another_recording_stays(model: Path, tmp_path: Path) -> None:
    others = [
        ".y.stretch-1",
        "..y.stretch-1.partial-999999999",
        "..x.stretch-1",
    ]  # the last is .x's
    for other in others:
        (tmp_path / other).mkdir()
    assert cli.main(words(model, tmp_path / "x", "--no-oracle --jobs 1")) == 0
    assert names(tmp_path) == sorted([*others, "x"])
