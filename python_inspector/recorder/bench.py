"""What recording costs, as ratios to a plain forward: `inspector bench`.

A LLaMA of 4 layers and hidden size 512 on 128 tokens. Every configuration runs in every round, so
that a slow spell of the machine meets them all; the fastest round of each counts. Hashing and
writing are timed by the writer and taken out of the ratios, which are about hooks and oracles.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import RecordWarning
from ..format.summary import Summary
from ..taps.options import Options, Proof, What
from .session import record

SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
TOKENS = 128
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CONFIGURATIONS: dict[str, Options] = {
    "hooks": Options(What(internals=False), Proof(oracle=False)),
    "leaves": Options(proof=Proof(oracle="leaves")),
    "all": Options(),
}
GOALS = {("f32", "hooks"): 1.3, ("bf16", "hooks"): 1.3, ("f32", "leaves"): 5, ("bf16", "leaves"): 8}


@dataclass
class Cost:
    """One configuration compared with the plain forward, in milliseconds."""

    dtype: str
    configuration: str
    plain_ms: float
    forward_ms: float
    """The forward with hooks and oracles, less hashing and spooling."""
    ratio: float
    goal: float | None
    hash_ms: float
    """Hashing and spooling of tensors and weights during the forward."""
    commit_ms: float
    """Writing the files after it."""
    megabytes: float
    checkpoints: int


def measure(dtype: str, rounds: int, folder: Path) -> list[Cost]:
    """The costs of every configuration in one dtype."""
    model = _model(DTYPES[dtype])
    ids = torch.arange(TOKENS)[None] * 7 % SIZES["vocab_size"]
    plain: list[float] = []
    recorded: dict[str, list[tuple[float, Summary]]] = {name: [] for name in CONFIGURATIONS}
    for round_ in range(rounds + 1):  # the first warms up
        times = {"": _seconds(lambda: model(ids, use_cache=False))}
        for name, asked in CONFIGURATIONS.items():
            place = folder / "recording"
            with _quiet(), record(model, place, asked.what, asked.proof) as recorder:
                times[name] = _seconds(lambda: model(ids, use_cache=False))
            if round_ and recorder.summary is not None:
                recorded[name].append((times[name], recorder.summary))
        if round_:
            plain.append(times[""])
    return [_cost(dtype, name, plain, runs) for name, runs in recorded.items()]


def _cost(dtype: str, name: str, plain: list[float], runs: list[tuple[float, Summary]]) -> Cost:
    base = min(plain)
    forward = min(seconds - s.hash_and_spool_seconds for seconds, s in runs)
    summaries = [summary for _, summary in runs]
    return Cost(
        dtype,
        name,
        plain_ms=base * 1e3,
        forward_ms=forward * 1e3,
        ratio=forward / base,
        goal=GOALS.get((dtype, name)),
        hash_ms=min(s.hash_and_spool_seconds for s in summaries) * 1e3,
        commit_ms=min(s.commit_seconds for s in summaries) * 1e3,
        megabytes=summaries[-1].total_bytes / 1e6,
        checkpoints=summaries[-1].checkpoints,
    )


def _model(dtype: torch.dtype) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES)
    torch.manual_seed(1)
    model = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # identity norms would only be warned about
            parameter.add_(torch.randn_like(parameter) * 0.02)
    evaluated: torch.nn.Module = model.eval()
    return evaluated


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        run()
    return time.perf_counter() - start


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        yield


def table(costs: Sequence[Cost], threads: int) -> str:
    """The costs for people."""
    lines = [
        f"LLaMA, {SIZES['num_hidden_layers']} layers, hidden {SIZES['hidden_size']}, {TOKENS} "
        f"tokens, {threads} threads",
        f"{'dtype':6}{'recording':11}{'plain ms':>9}{'forward':>9}{'ratio':>7}{'goal':>6}"
        f"{'hash ms':>9}{'write ms':>9}{'MB':>8}{'checkpoints':>13}",
    ]
    for c in costs:
        goal = "" if c.goal is None else f"{c.goal:g}x"
        lines.append(
            f"{c.dtype:6}{c.configuration:11}{c.plain_ms:9.1f}{c.forward_ms:9.1f}{c.ratio:6.2f}x"
            f"{goal:>6}{c.hash_ms:9.1f}{c.commit_ms:9.1f}{c.megabytes:8.1f}{c.checkpoints:13d}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="inspector bench", description=__doc__)
    parser.add_argument("--dtype", choices=[*DTYPES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        chosen = DTYPES if options.dtype == "all" else [options.dtype]
        with tempfile.TemporaryDirectory(prefix="plumbline-bench-") as folder:
            costs = [c for name in chosen for c in measure(name, options.rounds, Path(folder))]
    finally:
        torch.set_num_threads(before)
    print(table(costs, options.threads))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
