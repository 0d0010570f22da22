"""Checkpoints over a Ray cluster: shards as tasks, devices as resources of nodes.

Ray runs a task again elsewhere when its worker or node dies, so nothing here does. A task gives the
text of its shard's report; what the shards found is merged as `reports merge` does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..files import check_writable
from ..results import Summary
from . import fetch, layers, partial, program, ranges
from .fetch import WEIGHTS, Part, RemoteRecording, fetched
from .merge import merge
from .program import find_harness

SHARDS_PER_UNIT = 4  # so that a node that is faster, or dies, leaves little to wait for
LOST_SECONDS = 60.0  # that a device may have no node before the sweep ends
POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Plan:
    """What every node needs to know."""

    recordings: tuple[RemoteRecording, ...]
    cache: Path
    harness: Path | None
    options: tuple[str, ...]  # of the harness
    by_layers: bool = False

    def part(self, index: int, count: int) -> Part | None:
        """What a shard needs of the recordings; None: all of it."""
        chains = any(word in ("chained", "both") for word in self.options)
        return Part(index, count, chains) if self.by_layers else None


@dataclass(frozen=True)
class Shard:
    """One task."""

    device: str
    index: int  # from 1
    count: int

    def __str__(self) -> str:
        return f"{self.device} {self.index}/{self.count}"


def run_shard(plan: Plan, shard: Shard) -> str:
    """On a node: fetches what it lacks, runs the harness; the text of its report."""
    part = plan.part(shard.index, shard.count)
    folder = fetched(plan.recordings, plan.cache.expanduser(), part)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "results.jsonl"
        fixtures = [word for r in plan.recordings for word in ("--fixture", r.name)]
        command = [
            str(find_harness(plan.harness)), *fixtures, "--device", shard.device,
            "--shard", f"{shard.index}/{shard.count}", "--json", str(report), "--no-times",
            *(["--shard-by", "layers"] if part else []), *plan.options,
        ]  # fmt: skip
        weights = {"PLUMB_WEIGHTS": str(folder / WEIGHTS)} if (folder / WEIGHTS).is_dir() else {}
        done = subprocess.run(
            command, cwd=folder, env=os.environ | weights, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if not report.is_file():
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return report.read_text(encoding="utf-8")


def import_ray() -> ModuleType:
    """ValueError that says how to install it."""
    try:
        import ray
    except ImportError as error:
        from ..beside import extra

        raise ValueError(
            f"a sweep needs Ray, which is not installed: pip install {extra('sweep')}"
        ) from error
    return ray


def check_answers(address: str) -> None:
    """ValueError where nothing listens at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        return  # auto, local and clients' addresses, which Ray looks into at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--address {address}: no cluster answers: {error}; "
            "`ray start --head` prints the address of one"
        ) from error


def units_of(ray: ModuleType, devices: Sequence[str]) -> dict[str, int]:
    """How many tasks of each device can run at once; ValueError where one has no node."""
    found = ray.cluster_resources()
    missing = [device for device in devices if found.get(device, 0) < 1]
    if missing:
        known = sorted(
            {
                name
                for node in ray.nodes()
                if node["Alive"]
                for name in node["Resources"]
                if name.islower() and not name.startswith(("node:", "accelerator_type:"))
            }
            - {"memory", "object_store_memory"}
        )
        raise ValueError(
            f"no node has the device(s) {', '.join(missing)}; the cluster has "
            f"{', '.join(known) or 'none'}. A node announces one with ray start "
            f"--resources='{{\"{missing[0]}\": 1}}'"
        )
    return {device: int(found[device]) for device in devices}


def shards_of(units: dict[str, int], count: int | None) -> list[Shard]:
    """All tasks, alternating between devices: each has work from the start."""
    shards = [
        Shard(device, index, count or SHARDS_PER_UNIT * number)
        for device, number in units.items()
        for index in range(1, (count or SHARDS_PER_UNIT * number) + 1)
    ]
    return sorted(shards, key=lambda shard: shard.index)


class Sweep:
    """The tasks of a sweep while they run."""

    def __init__(self, ray: ModuleType, plan: Plan, retries: int) -> None:
        self._ray = ray
        self._plan = ray.put(plan)
        this = __import__(__name__, fromlist=["run_shard"])
        for module in (fetch, layers, partial, program, ranges, this):
            ray.cloudpickle.register_pickle_by_value(module)  # nodes need not have this package
        self._task = ray.remote(num_cpus=0, max_retries=retries)(run_shard)
        self._lost_since: dict[str, float] = {}

    def run(self, shards: Sequence[Shard], folder: Path) -> list[Path]:
        """The files of all shards' reports. ValueError for a shard that could not be run."""
        from tqdm import tqdm

        running = {
            self._task.options(resources={shard.device: 1}, name=f"verify {shard}").remote(
                self._plan, shard
            ): shard
            for shard in shards
        }
        reports: deque[Path] = deque()
        try:
            with tqdm(total=len(shards), unit="shard", disable=None) as bar:
                while running:
                    ready, _ = self._ray.wait(list(running), timeout=POLL_SECONDS)
                    for task in ready:
                        shard = running.pop(task)
                        report = folder / f"{len(reports)}.jsonl"
                        report.write_text(self._result(task, shard), encoding="utf-8")
                        reports.append(report)
                        bar.update(1)
                        bar.set_postfix_str(str(shard), refresh=False)
                    self._check_nodes({shard.device for shard in running.values()})
        finally:
            for task in running:
                self._ray.cancel(task, force=True)
        return list(reports)

    def _result(self, task: Any, shard: Shard) -> str:
        try:
            return str(self._ray.get(task))
        except self._ray.exceptions.RayTaskError as error:
            raise ValueError(f"shard {shard}: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            raise ValueError(f"shard {shard}: {error}") from error

    def _check_nodes(self, devices: set[str]) -> None:
        """ValueError where the last node of a device that has work is gone and stays away."""
        alive = self._ray.cluster_resources()
        now = time.monotonic()
        for device in devices:
            if alive.get(device, 0) >= 1:
                self._lost_since.pop(device, None)
            elif now - self._lost_since.setdefault(device, now) > LOST_SECONDS:
                raise ValueError(
                    f"the last node with the device {device} is gone for {LOST_SECONDS:.0f} s; "
                    "bring one back and run the sweep again"
                )


def sweep(
    plan: Plan, devices: Sequence[str], address: str, shards: int | None, retries: int, out: Path
) -> Summary:
    """Runs everything and writes the merged report; its summary."""
    ray = import_ray()
    check_writable(out)
    harness = find_harness(plan.harness)  # that judges the whole
    started = not ray.is_initialized()
    if started:
        check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise ValueError(
                f"--address {address}: no cluster answers; `ray start --head` starts one: {error}"
            ) from error
    try:
        with tempfile.TemporaryDirectory() as folder:
            tasks = shards_of(units_of(ray, devices), shards)
            reports = Sweep(ray, plan, retries).run(tasks, Path(folder))
            return merge(reports, out, harness)
    finally:
        if started:
            ray.shutdown()
