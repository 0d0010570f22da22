"""Measures whole models in turn: `harness bench --model` and transformers, on one checkpoint.

Both run the same folder of random weights, prompt after prompt, round after round, so that what
else the machine does meets both alike. Figures are medians over the steps of a round; the ratio is
the median over the rounds of theirs over ours.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

CONFIGS = Path(__file__).parents[1] / "tests" / "configs"
PUBLISHED = {
    "llama3-8b": "Meta-Llama-3-8B",
    "llama3.2-1b": "Llama-3.2-1B",
    "gemma2-2b": "gemma-2-2b",
    "zamba2-1.2b": "Zamba2-1.2B",
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
WARM_STEPS = 3


@dataclass(frozen=True)
class Plan:
    """What is measured: a prompt's length, single tokens behind it, how often, and on what."""

    tokens: int = 128
    steps: int = 32
    rounds: int = 3
    device: str = "cpu"
    dtype: str = "bf16"
    compiled: bool = False  # transformers' step by torch.compile, its cache static
    threads: int = 0


@dataclass(frozen=True)
class Speed:
    """Seconds of the prompt, and of a single token."""

    prefill: float
    decode: float


def published_config(shape: str) -> dict[str, Any]:
    """The published configuration of a shape's model."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{PUBLISHED[shape]}.json").read_text())
    return config


def random_model(config: dict[str, Any], plan: Plan, folder: Path) -> Any:
    """A model with transformers' own initial weights on the device, and a folder of them."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=DTYPES[plan.dtype]
    )
    model.save_pretrained(folder)
    return model.to(plan.device).eval()


def timed(device: str, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the device has done it, and its result."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


class Transformers:
    """Transformers at the same work."""

    def __init__(self, model: Any, plan: Plan) -> None:
        """Compiles the step if that is planned."""
        self.model, self.plan = model, plan
        self.step: Callable[..., Any] = model
        if plan.compiled:
            self.step = torch.compile(model, mode="reduce-overhead", fullgraph=True)

    @torch.inference_mode()
    def measure(self) -> Speed:
        """One prompt and its steps."""
        plan, config = self.plan, self.model.config
        ids = torch.randint(3, config.vocab_size, (1, plan.tokens), device=plan.device)
        cache = None
        if plan.compiled:
            cache = StaticCache(config=config, max_cache_len=plan.tokens + plan.steps + WARM_STEPS)
        call = {"use_cache": True, "logits_to_keep": 1}
        prefill, out = timed(
            plan.device, lambda: self.model(input_ids=ids, past_key_values=cache, **call)
        )
        cache = out.past_key_values
        steps = []
        for _ in range(WARM_STEPS + plan.steps):
            token = torch.randint(3, config.vocab_size, (1, 1), device=plan.device)
            step = partial(self.step, input_ids=token, past_key_values=cache, **call)
            seconds, _ = timed(plan.device, step)
            steps.append(seconds)
        return Speed(prefill, statistics.median(steps[WARM_STEPS:]))


def measure_harness(harness: Path, folder: Path, plan: Plan) -> Speed:
    """The same by `harness bench --model`; RuntimeError where it gives no figures."""
    report = folder / "bench.jsonl"
    device = {"cuda": "cuda:0"}.get(plan.device, plan.device)
    done = subprocess.run(
        [
            str(harness), "bench", "--model", str(folder), "--device", device,
            "--dtype", plan.dtype, "--tokens", str(plan.tokens), "--steps", str(plan.steps),
            "--threads", str(plan.threads), "--json", str(report),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{harness} bench: {done.stdout}{done.stderr}")
    line = json.loads(report.read_text().splitlines()[-1])
    return Speed(line["prefill_s"], 1e-6 * line["decode_us"])


def ratio(ours: list[Speed], theirs: list[Speed], of: Callable[[Speed], float]) -> float:
    """Theirs over ours, the median over pairs: above 1 ours is faster."""
    return statistics.median(of(b) / of(a) for a, b in zip(ours, theirs, strict=True))


def compare(name: str, config: dict[str, Any], harness: Path, plan: Plan) -> dict[str, Any]:
    """The line of a comparison, all rounds included."""
    if plan.threads:
        torch.set_num_threads(plan.threads)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = random_model(config, plan, folder)
        measure_harness(harness, folder, plan)  # warms up, and refuses plans
        rival = Transformers(model, plan)
        rival.measure()  # compiles, allocates
        ours, theirs = [], []
        for _ in range(plan.rounds):
            ours.append(measure_harness(harness, folder, plan))
            theirs.append(rival.measure())
    return {
        "type": "rival_model",
        "model": name,
        **asdict(plan),
        "torch": torch.__version__,
        "ours": [asdict(speed) for speed in ours],
        "theirs": [asdict(speed) for speed in theirs],
        "prefill_ratio": ratio(ours, theirs, lambda speed: speed.prefill),
        "decode_ratio": ratio(ours, theirs, lambda speed: speed.decode),
    }


def summary(line: dict[str, Any]) -> str:
    """For a terminal."""
    rows = [f"{line['model']}, {line['dtype']}, {line['device']}: tokens/s, ours and transformers'"]
    for ours, theirs in zip(line["ours"], line["theirs"], strict=True):
        prefill = [line["tokens"] / speed["prefill"] for speed in (ours, theirs)]
        decode = [1 / speed["decode"] for speed in (ours, theirs)]
        rows.append(
            f"prefill {prefill[0]:8.1f} {prefill[1]:8.1f}   "
            f"decode {decode[0]:8.2f} {decode[1]:8.2f}"
        )
    rows.append(f"ratio   prefill {line['prefill_ratio']:.2f}   decode {line['decode_ratio']:.2f}")
    return "\n".join(rows) + "\n"
