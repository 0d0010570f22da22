"""What is promised to those who install the package: versions, extras, what needs NumPy alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import python_inspector
from python_inspector import compatibility, needs, versions
from python_inspector.errors import FormatError
from python_inspector.format import operands
from python_inspector.format.named_recordings import recording_folder
from python_inspector.format.safetensors_file import read_header
from python_inspector.format.validate import SCHEMA
from reports.speed.rival_model import CONFIGS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HIDE = "import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n"
BEYOND_NUMPY = (*needs.EXTRAS, "safetensors")

NORM = """
import numpy as np
import python_inspector

def norm(inputs, weights, params):
    assert all(type(value) is np.ndarray for value in (*inputs.values(), *weights.values()))
    x = inputs["x"].astype(np.float64)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + params["eps"])
    return x * (weights["weight"] + params["weight_offset"])

for verdict in python_inspector.verify(
    norm, {recording!r}, block="rms_norm", arrays="numpy", harness={harness!r}
):
    print(verdict.status)
"""


def without(hidden: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Runs code where these packages cannot be imported."""
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_one_version_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    from python_inspector.cli.inspector import main as inspector
    from reports.__main__ import main as reports

    cmake = re.search(r"project\(plumbline VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake and cmake[1] == python_inspector.__version__
    assert PROJECT["dynamic"] == ["version"]
    for name, main in (("inspector", inspector), ("reports", reports)):
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"{name} {python_inspector.__version__}\n"


def test_pyproject_and_the_check_at_run_time_have_the_same_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*extras["check"], *extras["record"]]
    for package, (oldest, _) in versions.PROVEN.items():
        bound = f"{package}>={oldest[0]}.{oldest[1]}"
        assert any(text.split(",")[0] == bound for text in wanted)


def test_the_core_is_numpy_and_every_other_module_has_an_extra_that_brings_it() -> None:
    assert [text.split(">")[0] for text in PROJECT["dependencies"]] == ["numpy"]
    extras = PROJECT["optional-dependencies"]
    assert {"record", "report", "sweep", "postgresql", "test"} <= extras.keys()
    for module, extra in needs.EXTRAS.items():
        names = [re.split(r"[\[><=]", text)[0] for text in extras[extra]]
        assert module in names, f"{module} is not in {extra}"


def test_verify_needs_numpy_alone(harness: Path) -> None:
    recording = str(ROOT / "fixtures" / "llama-a1" / "whole-f32")
    code = NORM.format(recording=recording, harness=str(harness))
    done = without(BEYOND_NUMPY, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pass"] * 7


def test_verify_with_torch_tensors_says_what_it_needs() -> None:
    code = "import python_inspector; python_inspector.verify(print, 'x')"
    done = without(BEYOND_NUMPY, code)
    assert done.stderr.strip().endswith("needs torch: pip install 'plumbline-kernels[check]'")


@pytest.mark.parametrize(
    ("program", "words", "line"),
    [
        (
            "python_inspector.cli.inspector",
            ["record", "--model", "tiny:llama", "--out", "x"],
            "inspector: inspector record needs torch, transformers, jsonschema and tqdm: "
            "pip install 'plumbline-kernels[record]'",
        ),
        (
            "reports.__main__",
            ["history", "--db", "sqlite://", "list"],
            "reports: reports history needs jinja2, matplotlib and sqlalchemy: "
            "pip install 'plumbline-kernels[report]'",
        ),
    ],
)
def test_a_missing_extra_is_one_line(program: str, words: list[str], line: str) -> None:
    code = f"from {program} import main; sys.exit(main({words!r}))"
    done = without(tuple(needs.EXTRAS), code)
    assert (done.returncode, done.stderr.strip()) == (3, line)


def test_a_version_that_is_too_old_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "2.3.1+cu121")
    versions.require.cache_clear()
    with pytest.raises(versions.VersionError) as refused:
        versions.require("check()", "torch")
    assert str(refused.value) == (
        "check() needs torch 2.4 or newer, this is 2.3.1+cu121: pip install 'torch>=2.4'"
    )


def test_a_version_that_is_newer_than_proven_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.require.cache_clear()
    installed = {"torch": "2.13.1", "transformers": "5.25.0"}
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    with pytest.warns(versions.VersionWarning, match=r"4\.57 to 5\.24, this is 5\.25\.0"):
        versions.require("recording", *versions.PROVEN)
    assert versions.newer_than_proven() == (
        "; this is transformers 5.25.0, recording is proven up to 5.24"
    )
    installed["transformers"] = "4.57.0"
    versions.require.cache_clear()
    assert versions.newer_than_proven() == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.require("recording", *versions.PROVEN)


def test_older_zamba2_and_chained_gemma2_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compatibility.check_model_type("zamba2")
    compatibility.check_model_type("gemma2", chained=True)
    assert compatibility.model_warnings("gemma2") == []
    monkeypatch.setattr(metadata, "version", lambda package: "5.0.0")
    monkeypatch.setattr(compatibility, "_modeling_has", lambda model_type, name: False)
    with pytest.raises(versions.VersionError, match=r"Zamba2 needs transformers 5\.17"):
        compatibility.check_model_type("zamba2")
    with pytest.raises(versions.VersionError, match="without chained"):
        compatibility.check_model_type("gemma2", chained=True)
    compatibility.check_model_type("gemma2")
    assert len(compatibility.model_warnings("gemma2")) == 1


def test_outputs_reach_the_file_bit_by_bit(tmp_path: Path) -> None:
    values = {
        "strided": torch.arange(12.0).reshape(3, 4).T,
        "bf16": torch.tensor(1.5, dtype=torch.bfloat16),
        "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "empty": torch.zeros(0, 3, dtype=torch.float16),
    }
    file = tmp_path / "outputs.safetensors"
    operands.save({name: operands.output_of(value) for name, value in values.items()}, file)
    header = read_header(file)  # refuses holes, overlaps and sizes that do not fit
    for name, value in values.items():
        again = operands.read(header, name, "torch")
        assert again.dtype == value.dtype and torch.equal(again, value)
    array = operands.read(header, "strided", "numpy")
    assert np.array_equal(array, values["strided"].numpy())
    array[0, 0] = 7  # a copy of the reader's own
    big = np.arange(3, dtype=">f4")
    assert operands.output_of(big) == operands.output_of(big.astype("<f4"))


def test_an_output_of_another_kind_is_named() -> None:
    with pytest.raises(TypeError, match="is a list, not an array or a tensor"):
        operands.output_of([1.0])
    with pytest.raises(TypeError, match="has dtype bits8; known are float64, float32"):
        operands.output_of(torch.empty(1, dtype=torch.bits8))
    pairs = operands.output_of(torch.zeros(3, dtype=torch.complex64))
    assert (pairs.dtype, pairs.shape) == ("f32", (3, 2))


def test_a_config_from_before_5_is_written_as_the_harness_reads_it() -> None:
    class Old(compatibility.PreTrainedConfig):  # type: ignore[misc, name-defined]
        def to_dict(self) -> dict[str, object]:
            return {"rope_theta": 5.0, "rope_scaling": None, "top_k": 50, "hidden_size": 8}

    config = Old()
    vars(config).update(rope_theta=5.0, rope_parameters=None, rope_scaling=None)
    vars(config).update(original_max_position_embeddings=512)  # Phi-3 has it without a scaling
    assert compatibility.config_dict(config) == Old.to_dict(config) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}
    }


def test_where_no_recordings_are_installed_their_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMB_FIXTURES", str(tmp_path / "nowhere"))
    with pytest.raises(FormatError, match="fixtures` of a checkout in PLUMB_FIXTURES"):
        recording_folder(Path("llama-a1/whole-f32"))


def test_data_files_are_links_that_lead_somewhere() -> None:
    for path in (SCHEMA, CONFIGS / "Meta-Llama-3-8B.json"):
        assert path.is_file(), path
