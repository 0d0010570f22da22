"""`reports sweep` over a local cluster of two nodes, one of which is killed midway."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness_runs import ROOT, harness
from range_server import served

from reports.__main__ import main
from reports.fleet import sweep as sweeping

ray = pytest.importorskip("ray")

CASES = ("llama-a1/decode-bf16", "llama-a1/whole-f32")
OPTIONS = ["--checkpoint", "norm|lm_head|linear", "--repeat", "1", "--threads", "1"]
STORE = 80 << 20


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster of one node, which announces the devices of the parameter."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE, "resources": request.param}
    running = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        yield running
    finally:
        ray.shutdown()
        running.shutdown()


def swept(tmp_path: Path, cluster: Any, devices: str, *options: str) -> int:
    fixtures = [str(ROOT / "fixtures" / case) for case in CASES]
    return main(
        [
            "sweep", "--fixtures", *fixtures, "--devices", devices, "--address", cluster.address,
            "--out", str(tmp_path / "swept"), "--harness", harness(),
            "--cache", str(tmp_path / "cache"), *options, "--", *OPTIONS,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("cluster", [{"cpu": 1, "oracle": 1}], indirect=True)
def test_a_node_that_dies_midway_leaves_no_trace_in_the_report(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = cluster.add_node(
        num_cpus=1, object_store_memory=STORE, resources={"cpu": 1, "oracle": 1}
    )
    cluster.wait_for_nodes()
    killed = threading.Event()
    result = sweeping.Sweep._result

    def noticed(self: Any, task: Any, shard: Any) -> str:
        text = result(self, task, shard)
        if not killed.is_set():
            cluster.remove_node(victim, allow_graceful=False)
            killed.set()
        return text

    monkeypatch.setattr(sweeping.Sweep, "_result", noticed)
    assert swept(tmp_path, cluster, "cpu,oracle", "--shards", "6") == 0
    assert killed.is_set()

    whole = tmp_path / "whole.jsonl"
    fixtures = [word for case in CASES for word in ("--fixture", case)]
    command = [harness(), *fixtures, "--device", "cpu,oracle", "--json", str(whole), *OPTIONS]
    assert subprocess.run(command, cwd=ROOT / "fixtures", check=False).returncode == 0
    assert main(["merge", str(whole), "--out", str(tmp_path / "one"), "--harness", harness()]) == 0
    assert (tmp_path / "swept").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.parametrize("cluster", [{"cpu": 1}], indirect=True)
def test_four_nodes_fetch_layers_from_a_server_and_find_what_one_run_finds(
    tmp_path: Path, cluster: Any
) -> None:
    for _ in range(3):
        cluster.add_node(num_cpus=1, object_store_memory=STORE, resources={"cpu": 1})
    cluster.wait_for_nodes()
    case = "gemma2-a4/decode-bf16"
    options = ["--repeat", "1", "--threads", "1"]
    with served(ROOT / "fixtures") as (url, handler):
        words = ["sweep", "--fixtures", f"{url}/{case}", "--devices", "cpu", "--by", "layers"]
        words += ["--address", cluster.address, "--shards", "8", "--out", str(tmp_path / "swept")]
        words += ["--harness", harness(), "--cache", str(tmp_path / "cache"), "--", *options]
        assert main(words) == 0
        handler.ranges = False
        words[words.index("--cache") + 1] = str(tmp_path / "empty")
        assert main(words) == 3
    command = [harness(), "--fixture", case, "--device", "cpu", "--json", str(tmp_path / "whole")]
    assert subprocess.run([*command, *options], cwd=ROOT / "fixtures", check=False).returncode == 0
    one = tmp_path / "one"
    words = ["merge", str(tmp_path / "whole"), "--out", str(one), "--harness", harness()]
    assert main(words) == 0
    assert (tmp_path / "swept").read_bytes() == one.read_bytes()


@pytest.mark.parametrize("cluster", [{"emu:32": 1, "hip": 1}], indirect=True)
def test_devices_without_a_node_and_shards_that_cannot_run_are_named(
    tmp_path: Path, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(tmp_path, cluster, "emu:32,cuda") == 3
    error = capsys.readouterr().err
    assert "no node has the device(s) cuda; the cluster has emu:32, hip" in error
    assert "--resources='{\"cuda\": 1}'" in error
    assert swept(tmp_path, cluster, "hip", "--shards", "1") == 3
    assert "shard hip 1/1: exit code 5: harness: " in capsys.readouterr().err
    assert not (tmp_path / "swept").exists()


@pytest.mark.parametrize("port", ["1", "99999999999999999999"])
def test_an_address_where_nothing_listens_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=f"--address 127.0.0.1:{port}: no cluster answers"):
        sweeping.check_answers(f"127.0.0.1:{port}")


def test_a_sweep_without_ray_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["sweep", "--fixtures", str(ROOT / "fixtures" / CASES[0]), "--devices", "cpu"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 3
    assert "pip install 'plumbline-kernels[sweep]'" in capsys.readouterr().err
