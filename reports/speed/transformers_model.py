"""Transformers at a whole model with random weights: eager, and its step compiled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer
from transformers.utils.logging import disable_progress_bar

from .work import Speed, Work

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
WARM_STEPS = 3


class TransformersModel:
    """A model with transformers' own initial weights, made on the device."""

    def __init__(self, config: dict[str, Any], work: Work) -> None:
        """Draws the weights."""
        disable_progress_bar()
        if work.threads:
            torch.set_num_threads(work.threads)
        if work.device != "cpu":
            torch.cuda.set_device(work.device)
        torch.manual_seed(1)
        with torch.device(work.device):  # drawn by a CPU, billions of them take minutes
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**config), dtype=DTYPES[work.dtype]
            )
        self.model, self.work = model.eval(), work

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The model for a step: one graph, on a GPU replayed as one."""
        out: Callable[..., Any] = torch.compile(self.model, mode="reduce-overhead", fullgraph=True)
        return out

    def save(self, folder: Path) -> None:
        """Writes the folder that others load the same weights from, unless it is there."""
        if not (folder / "config.json").exists():
            self.model.save_pretrained(folder)

    @torch.inference_mode()
    def measure(self, way: str) -> Speed:
        """One prompt and its steps. The prompt is never compiled; the first step may be then."""
        work = self.work
        step = self.compiled if way == "compile" else self.model
        cache = self.static_cache() if way == "compile" else None
        call = {"use_cache": True, "logits_to_keep": 1}
        prefill, out = self.timed(
            partial(self.model, input_ids=self.tokens(work.tokens), past_key_values=cache, **call)
        )
        cache = out.past_key_values
        steps = [
            self.timed(partial(step, input_ids=self.tokens(1), past_key_values=cache, **call))[0]
            for _ in range(WARM_STEPS + work.steps)
        ]
        return Speed(prefill, statistics.median(steps[WARM_STEPS:]))

    def static_cache(self) -> StaticCache:
        """Caches of all tokens in every layer.

        Transformers' own for a window counts in a Python int, for which torch.compile starts over
        and CUDA graphs are recorded again at every step.
        """
        length = self.work.tokens + self.work.steps + WARM_STEPS
        cache = StaticCache(config=self.model.config, max_cache_len=length)
        cache.layers = [
            StaticLayer(length) if type(layer) is StaticSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        return cache

    def tokens(self, count: int) -> torch.Tensor:
        """Random ids, 1 x count."""
        return torch.randint(3, self.model.config.vocab_size, (1, count), device=self.work.device)

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds until the device has done it, and its result."""
        self.wait()
        start = time.perf_counter()
        result = call()
        self.wait()
        return time.perf_counter() - start, result

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.work.device != "cpu":
            torch.cuda.synchronize(self.work.device)
