"""find_package(Plumbline): a plugin built against what cmake --install gives, and judged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cpu"


def run(*words: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cmake") is None or not (BUILD / "cmake_install.cmake").is_file():
        pytest.skip("no cmake on PATH, or build/cpu is not configured")
    prefix = tmp_path_factory.mktemp("prefix")
    for component in ("runtime", "development"):
        run("cmake", "--install", BUILD, "--prefix", prefix, "--component", component)
    return prefix


def test_a_plugin_is_built_and_judged_from_the_installed_package(
    prefix: Path, tmp_path: Path
) -> None:
    project = ROOT / "tests" / "plugin" / "package"
    source = ROOT / "tests" / "plugin" / "rms_norm.c"
    build = tmp_path / "build"
    run(
        *("cmake", "-S", project, "-B", build, f"-DSOURCE={source}"),
        *("-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"),  # there may be no make
    )
    run("cmake", "--build", build)
    recording = ROOT / "fixtures" / "llama-a1" / "whole-f32"
    results = tmp_path / "results.jsonl"
    run(
        *(prefix / "bin" / "harness", "--plugin", build / "my_norm.so", "--device", "cpu"),
        *("--block", "rms_norm", "--dtype", "f32", "--fixture", recording, "--json", results),
    )
    judged = [json.loads(line) for line in results.read_text().splitlines()]
    assert {name for line in judged for name in line.get("impl", ())} == {"rms_norm/plugin:my_norm"}


def test_only_the_surface_of_a_plugin_is_installed(prefix: Path) -> None:
    headers = prefix / "include" / "plumbline"
    found = {str(path.relative_to(headers)) for path in headers.rglob("*.h")}
    assert "kernels/plugin.h" in found
    assert found - {"harness/capi/plumbline_judge.h"} == {
        "kernels/plugin.h", "kernels/core/dtype.h", "kernels/core/error.h",
        "kernels/emu/emulator.h", "kernels/gpu/gpu.h", "kernels/gpu/gpu_cuda.h",
        "kernels/gpu/gpu_emu.h",
        "kernels/gpu/gpu_hip.h",
        *(f"kernels/emu/cuda/{path.name}" for path in (ROOT / "kernels/emu/cuda").iterdir()),
    }  # fmt: skip


def test_ci_verify_builds_all_that_is_installed(prefix: Path) -> None:
    """`cmake --install` fails on the first file that is not there."""
    lists = (*ROOT.glob("harness/**/CMakeLists.txt"), *ROOT.glob("ci/cmake/*.cmake"))
    installed = re.findall(r"install\(TARGETS ([\w ]+?) (?:RUNTIME|LIBRARY)", "".join(
        file.read_text() for file in lists
    ))  # fmt: skip
    (built,) = re.findall(
        r"^readonly targets=\((.*)\)$", (ROOT / "ci" / "verify").read_text(), re.M
    )
    assert set(" ".join(installed).split()) == set(built.split()) == {"harness", "plumbline_judge"}
    assert (prefix / "lib" / "libplumbline_judge.so").is_file()
    assert (prefix / "bin" / "harness").is_file()
