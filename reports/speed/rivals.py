"""Measures PyTorch's ways of the cases of `harness bench` on one device, as JSON lines.

Same shapes, dtypes, rotation of operands and rule of timing as the harness: medians over batches of
calls, by CUDA events around replays of a graph, or by perf_counter; outputs are memory that the
call before has freed, as the harness has one set of outputs. A way that fails is a line with a
`gap`: its reason.
"""

from __future__ import annotations

import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from ..files import replacing
from . import rival_attention, rival_cases
from .rival_cases import TORCH_NAMES, Case, Maker, Operand, Operands, Way
from .shapes import Shape, Sizes

ROTATE_BYTES = 256 << 20  # of operands in all: more than any cache holds
MOST_SETS = 4096
BY_NAME = ("ops", "products")
"""Blocks that "all" does not mean."""
BATCH_SECONDS = 0.002
FEWEST_BATCHES, MOST_BATCHES, MOST_CALLS = 3, 20, 2000
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


@dataclass
class Rival:
    """One way's figures, or why there are none."""

    case: str
    way: str
    shape: str
    tokens: int
    context: int
    dtype: str
    device: str
    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    launches: str | None = None  # "replayed" as a CUDA graph, or "queued" one by one
    gap: str | None = None


def all_cases(shape: Shape, sizes: Sizes) -> list[Case]:
    """Every case, in the order of `harness bench`."""
    m = Maker(shape, sizes)
    return [
        *rival_cases.row_cases(m),
        *rival_cases.linear_cases(m),
        *rival_cases.rotary_cases(m),
        rival_cases.cache_case(m),
        *rival_attention.part_cases(m),
        *rival_attention.sdpa_cases(m),
        *rival_cases.activation_cases(m),
        *rival_attention.block_cases(m),
        *rival_cases.logits_cases(m),
        *rival_cases.component_cases(m),
        *rival_cases.op_cases(m),
    ]


def make_operand(operand: Operand, sizes: Sizes) -> torch.Tensor:
    """A tensor with random contents on the device."""
    device = sizes.device
    if operand.below is not None:
        return torch.randint(operand.below, operand.shape, device=device)
    if operand.positions:
        return torch.arange(operand.shape[-1], device=device).expand(operand.shape)
    if operand.frequencies:
        return 1e4 ** -torch.linspace(0, 1, operand.shape[0] + 1, device=device)[:-1]
    if operand.flags:
        return torch.rand(operand.shape, device=device) < 0.5
    dtype = getattr(torch, TORCH_NAMES[operand.dtype or sizes.dtype])
    drawn = dtype if dtype.itemsize > 1 else torch.float32
    out = torch.empty(operand.shape, device=device, dtype=drawn)
    return out.normal_(0, operand.deviation).to(dtype)


def operand_sets(case: Case, sizes: Sizes) -> list[Operands]:
    """As many sets of operands as make the caches useless, at least one."""
    shared = {
        name: make_operand(operand, sizes)
        for name, operand in case.operands.items()
        if operand.shared
    }
    sets: list[Operands] = []
    used = 0
    while not sets or (used < ROTATE_BYTES and len(sets) < MOST_SETS):
        fresh = {
            name: make_operand(operand, sizes)
            for name, operand in case.operands.items()
            if not operand.shared
        }
        sets.append({**fresh, **shared})
        used += sum(t.numel() * t.element_size() for t in fresh.values())
        if not fresh:
            break
    return sets


def clock(device: str) -> Callable[[Callable[[], object]], float]:
    """How to take the seconds of queued work on a device."""

    def by_host(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def by_events(work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return by_host if device == "cpu" else by_events


def recorded(work: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """The work as a CUDA graph, so that the device is timed and not the host that launches;
    nothing where it does more than launch."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(torch.cuda.Stream()):  # torch.cuda.graph() would collect garbage too
            graph.capture_begin()
            try:
                work()
            finally:
                graph.capture_end()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    graph.replay()  # the first one also moves the graph to the device
    return graph


def measure(
    function: Callable[[Operands], object], sets: list[Operands], device: str, seconds: float
) -> tuple[list[float], str]:
    """Seconds per call of each batch; whether launches were "replayed" or "queued"."""
    timed, at = clock(device), 0

    def calls(count: int) -> None:
        nonlocal at
        for _ in range(count):
            function(sets[at])
            at = (at + 1) % len(sets)

    def batch(count: int) -> float:
        return timed(partial(calls, count)) / count

    batch(1)  # compiles, allocates
    start = time.perf_counter()
    count = max(1, min(MOST_CALLS, math.ceil(BATCH_SECONDS / min(batch(1), batch(2)))))
    batch(count)
    work: Callable[[], object] = partial(calls, count)
    launches = "queued"
    if device != "cpu":
        turns = math.ceil(count / len(sets)) * len(sets)  # a replay finds nothing in the caches
        if graph := recorded(partial(calls, turns)):
            count, work, launches = turns, graph.replay, "replayed"
    out: list[float] = []
    while len(out) < FEWEST_BATCHES or (
        len(out) < MOST_BATCHES and time.perf_counter() - start < seconds
    ):
        out.append(timed(work) / count)
    return out, launches


def measure_way(
    case: Case, way: Way, sets: list[Operands], shape: Shape, sizes: Sizes, seconds: float
) -> Rival:
    """A way's figures; whatever it throws becomes its gap."""
    out = Rival(case.name, way.name, shape.name, **asdict(sizes))
    try:
        function = torch.compile(way.function, dynamic=False) if way.compiled else way.function
        batches, out.launches = measure(function, sets, sizes.device, seconds)
    except Exception as error:  # a gap is a result
        out.gap = " ".join(str(error).split())[:200] or type(error).__name__
        return out
    times = sorted(1e6 * t for t in batches)
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    out.median_us, out.p10_us, out.p90_us = statistics.median(times), deciles[0], deciles[-1]
    return out


def case_names(shape: Shape, sizes: Sizes) -> set[str]:
    """What --block may name: "all", every case, and every block (the part before a dot)."""
    cases = [case.name for case in all_cases(shape, sizes)]
    return {"all", *cases, *(name.split(".")[0] for name in cases)}


def measure_cases(
    shape: Shape, sizes: Sizes, wanted: str, quick: bool, seconds: float
) -> Iterator[Rival]:
    """Every way of every wanted case: "all", or cases and blocks (the part before a dot), "a,b"."""
    names = wanted.split(",")
    for case in all_cases(shape, sizes):
        group = case.name.split(".")[0]
        if not {"all" if group not in BY_NAME else group, case.name, group} & set(names):
            continue
        try:
            sets = operand_sets(case, sizes)
        except RuntimeError as error:  # out of memory
            yield Rival(case.name, "-", shape.name, **asdict(sizes), gap=str(error)[:200])
            continue
        for way in case.ways:
            if quick and way.slow_to_compile:
                yield Rival(case.name, way.name, shape.name, **asdict(sizes), gap="quick run")
            else:
                yield measure_way(case, way, sets, shape, sizes, seconds)
        del sets
        torch.compiler.reset()
        if sizes.device != "cpu":
            torch.cuda.empty_cache()


def keep_freed_memory() -> None:
    """Has glibc hand out freed memory again: else each call pays the page faults of its outputs."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def ceilings(sizes: Sizes) -> dict[str, Any]:
    """PyTorch's copy (bytes read and written) and matrix product on the device."""
    cpu = sizes.device == "cpu"
    timed, dtype = clock(sizes.device), getattr(torch, TORCH_NAMES[sizes.dtype])
    a = torch.zeros(1 << (28 if cpu else 30), dtype=torch.uint8, device=sizes.device)
    b = torch.empty_like(a)
    copy = min(timed(lambda: b.copy_(a)) for _ in range(6))
    n = 2048 if cpu else 8192
    x, w = (torch.randn(n, n, device=sizes.device, dtype=dtype) for _ in range(2))
    matrix = min(timed(lambda: torch.nn.functional.linear(x, w)) for _ in range(6))
    return {
        "type": "rival_ceilings",
        "device": sizes.device,
        "dtype": sizes.dtype,
        "copy_gb_per_s": 2e-9 * a.numel() / copy,
        "matrix_tflop_per_s": 2e-12 * n**3 / matrix,
    }


def device_line(device: str) -> dict[str, Any]:
    """When this is, versions and hardware."""
    hardware = torch.cuda.get_device_name(device) if device != "cpu" else "cpu"
    return {
        "type": "rival_run",
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
    }


@torch.no_grad()
def run(
    shape: Shape,
    sizes: Sizes,
    out: Path,
    wanted: str = "all",
    quick: bool = False,
    seconds: float = 0.5,
    threads: int = 0,
) -> int:
    """Measures and prints each line as it becomes known; the file is there when all are."""
    if threads:
        torch.set_num_threads(threads)
    if sizes.device != "cpu":
        torch.cuda.set_device(sizes.device)  # where events are recorded
    keep_freed_memory()
    with replacing(out) as partial, partial.open("w", encoding="utf-8") as file:
        write(file, device_line(sizes.device))
        write(file, ceilings(sizes))
        for rival in measure_cases(shape, sizes, wanted, quick, seconds):
            write(file, {"type": "rival", **asdict(rival)})
            figure = f"{rival.median_us:10.1f} us" if rival.median_us else f"gap: {rival.gap}"
            print(f"{rival.case:18} {rival.way:26} {figure}", flush=True)
    return 0


def write(file: TextIO, line: dict[str, Any]) -> None:
    """One JSON line."""
    file.write(json.dumps(line) + "\n")
