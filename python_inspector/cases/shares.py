"""Into how many stretches a run is cut, one for each process, and where.

The work of each place is estimated from the model's config. Where layers do not stand in a row, or
nothing is known of them, a forward call is one place. Nothing here imports torch: the processes
have to start in the first tenth of a second.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..described import DESCRIBED
from ..models.gpu_memory import memory_of
from ..stretches import Place, Stretch

CORES = 4
"""Of one process: its own, and threads that hash and write."""
ROOM = 8 << 30
"""Bytes of an accelerator that one process needs beside twice the weights."""
LARGEST = 3
"""One of them may make outputs, such as a prompt's logits, whose samples take one part in so many
of its memory."""

# Measured on one H200 with 16 slow cores: a decode step of Gemma-2-2B takes 2.9 s, of its 512
# tokens a layer 0.43 s and what stands behind the layers, six outputs of 131 M elements, 2.8 s;
# loading its 5.2 GB takes 1.3 s. Four processes take twice as long, each for all of that.
LAYER = 0.11
"""Seconds that the calls in a layer take whatever their size, with 16 simulated kernels."""
BEHIND = 0.03
"""And those behind the layers."""
SKIPPED = 0.15 * LAYER
"""That they take where they are not recorded, for those who record what comes behind."""
ELEMENT = 6.5e-9
"""Of each element of an output in a layer."""
ELEMENT_BEHIND = 3.5e-9
"""And behind the layers, where products are few."""
STARTED = 0.5
"""By which each process slows down the others while it starts."""
LOADED = 4e9
"""Bytes of weights that are loaded in a second."""
LEAST = 5.0
"""Seconds of work below which one process does it all: to start a process takes ten."""


def stretches(options: Namespace, calls: Sequence[int]) -> list[Stretch]:
    """Of what `inspector record` was asked for, the stretch of each process, in the order of the
    run. `calls`: the forward calls that are recorded."""
    if options.stretch is not None:
        return [options.stretch]
    places = [*works(options, calls)]
    jobs = options.jobs
    if jobs is None:
        alone = options.chained or options.weights or not options.device
        work = sum(work for _, work in places)
        jobs = 1 if alone else sensible(options.device, options.model, work)
    return cut(places, jobs)


def sensible(device: str, model: str, work: float) -> int:
    """How many processes a machine with this accelerator has room for, and whose start is worth it
    for so many seconds of `work`: each takes less off the others' shares than the one before it.
    `model` is a folder's path; of other models the size is not known.

    Of Gemma-2-2B, 512 tokens and 4 steps, that makes four processes, with --rows three; of
    Llama-3-8B, 1024 tokens and 2 steps with --rows, two: one took 34 s, three 50 s.
    """
    weights = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    memory = memory_of(device) if weights else None
    if memory is None or work < LEAST:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    each = 2 * weights + ROOM
    beside_largest = (memory - memory // LARGEST) // each
    most = min((cores or 1) // CORES, memory // each, 1 + beside_largest)
    count, start = 1, STARTED + weights / LOADED
    while count < most and work / count - work / (count + 1) > start:
        count += 1
    return count


def cut(places: Sequence[tuple[Place, float]], count: int) -> list[Stretch]:
    """At most so many stretches, the largest as small as can be; the first one, whose process also
    joins the others, gets no more than is left. The last one's end is no place any more."""
    works = [work for _, work in places]
    low, high = 0.0, sum(works) + SKIPPED * len(works)
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if len(_cuts(works, middle)) < count else (middle, high)
    (last, _), _ = places[-1]
    cuts = _cuts(works, high) if count > 1 else []
    return [*pairwise([(0, 0), *(places[index][0] for index in cuts), (last + 1, 0)])]


def _cuts(works: Sequence[float], most: float) -> list[int]:
    """In front of which places to cut, from the end on, so that no stretch has more work than that,
    what it takes to get there included, unless it has one place only."""
    cuts, work = [], 0.0
    for index in reversed(range(len(works))):
        if work and work + works[index] + SKIPPED * index > most:
            cuts.append(index + 1)
            work = 0.0
        work += works[index]
    return cuts[::-1]


def works(options: Namespace, calls: Sequence[int]) -> Iterator[tuple[Place, float]]:
    """The places of these calls, and the seconds that each may take."""
    config = _config(options.model)
    layers = int(config.get("num_hidden_layers") or 0)
    share = 0.3 + 0.7 * options.spread / 16 if options.oracle else 0.2
    sizes = [*_sizes(options)]
    for call in calls:
        tokens, keys = sizes[call]
        if not layers:
            yield (call, 0), share * (LAYER + tokens * ELEMENT)
            continue
        for layer in range(layers):
            elements = _in_layer(options, config, layer, tokens, keys)
            yield (call, layer), share * (LAYER + elements * ELEMENT) * _is_wanted(options, layer)
        elements = _rows(options, tokens) * _behind(config)
        yield (call, layers), share * (BEHIND + elements * ELEMENT_BEHIND)


def _config(model: str) -> dict[str, Any]:
    """Of a folder's model of a described architecture, whose layers stand in a row; else {}."""
    try:
        config = json.loads((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    known = isinstance(config, dict) and config.get("model_type") in DESCRIBED
    return config if known else {}


def _sizes(options: Namespace) -> Iterator[tuple[int, int]]:
    """Tokens of each forward call in all rows of the batch, and the keys that each of them sees."""
    if options.token_ids:
        batch, tokens = len(options.token_ids), max(map(len, options.token_ids))
    elif options.prompt:
        batch, tokens = len(options.prompt), max(map(len, options.prompt)) // 4 + 1
    else:
        batch = options.batch or len(options.left_pad or (0,))
        tokens = options.tokens or sum(options.chunks or (11,))
    seen = 0
    for count in (*(options.chunks or (tokens,)), *(1,) * options.steps):
        seen = seen + count if options.cache != "none" else count
        yield batch * count, seen


def _rows(options: Namespace, tokens: int) -> int:
    return min(tokens, options.rows or tokens)


def _is_wanted(options: Namespace, layer: int) -> bool:
    return options.layers is None or layer in options.layers


def _in_layer(
    options: Namespace, config: dict[str, Any], layer: int, tokens: int, keys: int
) -> float:
    """Elements of its outputs."""
    channels = int(config.get("hidden_size") or 1)
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or channels // heads)
    inner = int(config.get("intermediate_size") or 4 * channels)
    per_token = 9 * channels + 4 * inner + 4 * (heads + kv_heads) * width
    if layer in _whole(options, config):
        return tokens * (per_token + 6 * heads * keys)
    return _rows(options, tokens) * per_token


def _whole(options: Namespace, config: dict[str, Any]) -> Sequence[int]:
    """The layers that are recorded with all tokens."""
    count = int(config["num_hidden_layers"])
    if options.rows is None:
        return range(count)
    return options.whole_layers or (0, 1, count - 1)


def _behind(config: dict[str, Any]) -> int:
    """Elements of one token's outputs behind the layers: logits, with a softcap at each step."""
    logits = 6 if config.get("final_logit_softcapping") else 2
    return logits * int(config.get("vocab_size") or 1) + 3 * int(config.get("hidden_size") or 1)
