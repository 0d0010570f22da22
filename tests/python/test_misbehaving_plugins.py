"""A plugin that crashes, exits, hangs or promises too little: one clear error in every command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from harness_runs import Run, command, verify

DEVICE = ("--device", "cpu", "--dtype", "f32")
NORMS = (*DEVICE, "--block", "rms_norm", "--fixture", "fixtures/llama-a1/whole-f32")
COMMANDS = {
    "bench": ("bench", "--shape", "tiny", "--tokens", "8", "--block", "rms_norm", *DEVICE),
    "forward": ("forward", "--model", "tiny", "--tokens", "5,9,14", *DEVICE),
    "generate": ("generate", "--model", "tiny", "--tokens", "5,9", "--max-new", "3", *DEVICE),
    "support": ("support", *NORMS[:2], *NORMS[4:]),
}
PLACES = {
    "bench": "[bench] rms_norm",
    "forward": "[forward] the tokens on cpu",
    "generate": "[generate] the prompt on cpu",
    "support": "[support] rms_norm on cpu",
}

Ended = Mapping[str, Future[CompletedProcess[str]]]

# Longer than what comes before the plugin's first call, on a busy machine too.
SECONDS = {"bench": "15", "forward": "8", "generate": "8", "support": "8"}


def plugin(plugins: Path, case: str) -> tuple[str, str]:
    return "--plugin", str(plugins / f"hostile_{case}.so")


@pytest.fixture(scope="module")
def hanging(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """By command what comes of a kernel that hangs: most of it is waiting, so they do it at once,
    while other tests run."""
    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        folder = tmp_path_factory.mktemp("hanging")
        yield {name: pool.submit(ended, plugins, folder, name, "hangs") for name in COMMANDS}


@pytest.fixture(autouse=True)
def _begun(hanging: Ended) -> None:
    """With the first test."""


def ended(plugins: Path, folder: Path, name: str, case: str) -> CompletedProcess[str]:
    """A command with a kernel that ends its process; it leaves no file."""
    out = folder / f"{name}.jsonl"
    files = () if name == "support" else ("--json", str(out))
    done = command(*COMMANDS[name], *files, *plugin(plugins, case), "--timeout", SECONDS[name])
    assert not out.exists()
    return done


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("crashes", "the worker process was killed by signal 11 (Segmentation fault)"),
        ("exits", "the worker process ended without a result"),
    ],
)
def test_a_kernel_that_ends_its_process(
    plugins: Path, tmp_path: Path, name: str, case: str, words: str
) -> None:
    done = ended(plugins, tmp_path, name, case)
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"harness: {PLACES[name]}" in done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("entry_aborts", 5, "the process that loaded it was killed by signal 6 (Aborted)"),
        ("entry_exits", 5, "the process that loaded it ended without a result"),
        ("entry_hangs", 6, "was not loaded within 1 s"),
    ],
)
def test_an_entry_function_that_ends_its_process(
    plugins: Path, case: str, code: int, words: str
) -> None:
    for words_of_command in (NORMS, COMMANDS["forward"]):
        seconds = "1" if case == "entry_hangs" else "60"
        done = command(*words_of_command, *plugin(plugins, case), "--timeout", seconds)
        assert done.returncode == code
        assert done.stderr == f"harness: [plugin] {plugin(plugins, case)[1]}: {words}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_timeout_without_a_worker(name: str) -> None:
    for words in (COMMANDS[name], NORMS):
        done = command(*words, "--no-worker", "--timeout", "5")
        assert done.returncode == 2
        assert "[--timeout] has no effect with --no-worker" in done.stderr


def test_the_same_without_a_worker(plugins: Path) -> None:
    there = command(*COMMANDS["forward"], *plugin(plugins, "unsupported"))
    here = command(*COMMANDS["forward"], *plugin(plugins, "unsupported"), "--no-worker")
    assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
    assert there.returncode == 4
    assert "hostile_unsupported.so: does not support this case (PLUMB_UNSUPPORTED)" in there.stderr


def test_a_benchmark_has_canaries(plugins: Path) -> None:
    done = command(*COMMANDS["bench"], *plugin(plugins, "overrun"))
    assert done.returncode == 1
    assert 'before timing: wrote out of bounds: byte 0 past the end of output "out"' in done.stdout


def test_devices_shows_a_plugin(plugins: Path) -> None:
    option = plugin(plugins, "unsupported")
    done = command("devices", *option)
    assert f"hostile replaces rms_norm of cpu, {option[1]}" in done.stdout


def judge(plugins: Path, tmp_path: Path, case: str, *options: str) -> Run:
    return verify(tmp_path, *NORMS, *plugin(plugins, case), *options)


def test_nan_is_not_said_to_round_like_anything(plugins: Path, tmp_path: Path) -> None:
    options = ("--dtype", "bf16", "--fixture", "fixtures/llama-a1/decode-bf16")
    run = verify(tmp_path, "--block", "rms_norm", "--device", "cpu", *options,
                 *plugin(plugins, "nan"))  # fmt: skip
    assert run.code == 1
    assert "NaN" in run.stdout or "nan" in run.stdout
    assert "rounds like" not in run.stdout


LOOSER = "rms_norm: f32 acc2 eager, the device's own f32 acc24 eager"


def test_a_contract_looser_than_the_devices_own_is_refused(plugins: Path, tmp_path: Path) -> None:
    run = judge(plugins, tmp_path, "loose")
    assert run.code == 3
    assert f"contract of {LOOSER}: its limits would be wider" in run.stderr
    assert command(*COMMANDS["bench"], *plugin(plugins, "loose")).returncode == 3


def test_a_looser_contract_that_is_meant_is_in_every_verdict(plugins: Path, tmp_path: Path) -> None:
    reports = {name: tmp_path / name for name in ("junit.xml", "summary.md")}
    files = ("--junit", str(reports["junit.xml"]), "--markdown", str(reports["summary.md"]))
    run = judge(plugins, tmp_path, "loose", "--looser-contracts", *files)
    assert run.code == 0, run.stdout + run.stderr
    assert all(result["looser_contracts"] == [LOOSER] for result in run.results)
    assert all("--looser-contracts" in result["again"] for result in run.results)
    summary = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert summary["verdict"].endswith(f"; judged by looser contracts: {LOOSER}")
    for text in (run.stdout, *(report.read_text() for report in reports.values())):
        assert "f32 acc2 eager" in text


def test_a_gpu_that_is_no_number() -> None:
    for name in ("cuda:x", "hip:", "cuda:-1"):
        done = command(*NORMS[2:], "--device", name)
        assert done.returncode == 2
        assert "is not the number of a GPU" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kernel_that_hangs(hanging: Ended, name: str) -> None:
    done = hanging[name].result()
    assert done.returncode == 6, done.stdout + done.stderr
    assert f"harness: {PLACES[name]}" in done.stderr
    assert "the worker process did not finish within " in done.stderr
