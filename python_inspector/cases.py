"""The committed recordings: which model, run and blocks each is, and how they are made again."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from python_inspector import border_cases
from python_inspector.border_cases import BORDER_CASES, BorderCase
from python_inspector.capture import COMPONENTS
from python_inspector.case import (
    PREFILL,
    Case,
    Plan,
    calls,
    chunked,
    chunks_of,
    decode,
    decode_of,
    padded,
    padded_decode,
    padded_decode_of,
    static,
    whole,
)
from python_inspector.folders import replace_folder
from python_inspector.format import FormatError
from python_inspector.further_cases import further_cases
from python_inspector.run import What, Where
from python_inspector.show import format_bytes
from python_inspector.strict_json import load_json
from python_inspector.validate import RECORDING, find_recordings, validate

CASE_LIMIT = 2_500_000
TOTAL_LIMIT = 60_000_000
"""Bytes of one recording, and of all with their weights: the folder travels with the repository."""

# What is left out keeps the tree small: single operations where another recording of the model has
# them, and layers beyond the first of each kind.
_PLAIN = What(internals=False)
_CHAINED = What(chained=True)
_CHAINED_PLAIN = What(internals=False, chained=True)
_CHAINED_JUDGED = What(internals=False, masked_rows="judged", chained=True)
_TWO_LAYERS = What(internals=False, layers=(0, 1))
_ONE_LAYER = What(internals=False, layers=(0,))
_MASKED = What(blocks=("sdpa", "attention"), internals=False, masked_rows="judged")
_MASKS = What(blocks=("causal_mask", "sdpa"), layers=(0, 1), internals=False)
_ROTARY = What(
    blocks=("rotary_frequencies", "rotary_table", "rotary", "sdpa", "attention", "decoder_layer"),
    layers=(0,),
    internals=False,
)
_COMPONENTS = What(blocks=(*sorted(COMPONENTS), "softmax", "scale", "repeat_kv"), layers=(0,))
_TURNED = What(blocks=("permute",), layers=(0,))
_STATES = What(
    blocks=("mask_fill", "conv1d", "conv_cache", "ssm_cache", "kv_cache"),
    layers=(0, 1),
)
_ONE_STATE = replace(_STATES, layers=(0,))
_POSITIONS = What(blocks=("position_ids",))
_CACHES = What(blocks=("attention", "causal_mask"), layers=(0, 1), chained=True)
_SEEN = What(
    blocks=("attention", "causal_mask", "sdpa", "position_ids"), layers=(0, 1), chained=True
)
_STATIC_PADDED = What(blocks=("causal_mask",), masked_rows="judged", chained=True)
_CHAIN = What(blocks=(), chained=True)
_JOINED = What(blocks=("static_kv_cache", "concat", "slice"), layers=(0,))
# Zamba2's layers: linear, hybrid with block 0, linear, hybrid with 1, hybrid with 0 again, linear.
# Kinds that Zamba2 has in common with other models, and the parts of an adapter, are recorded where
# layers are few.
_MIXERS = ("causal_conv1d", "ssd_scan", "gated_rms_norm", "mamba2_mixer")
_MIXER = What(blocks=_MIXERS, layers=(0,))
_ZAMBA2_KINDS = (
    *_MIXERS, "attention", "glu_mlp", "kv_cache", "causal_mask", "low_rank_adapter",
    "shared_transformer", "mamba_layer", "hybrid_layer", "lm_head",
)  # fmt: skip
_ZAMBA2_CHAINED = What(blocks=(*_ZAMBA2_KINDS, "rms_norm", "sdpa"), chained=True)
_ZAMBA2_FIRST = What(blocks=_ZAMBA2_KINDS, layers=(0, 1, 3))
_ZAMBA2_PADDED = What(blocks=(*_ZAMBA2_KINDS, "sdpa"), layers=(0, 1), masked_rows="judged")
_ZAMBA2_PLAIN = What(internals=False, layers=(0, 1))


def _main_cases(model: str, about: str, single: What, cut: What, padding: What) -> Iterator[Case]:
    """The modes and dtypes that LLaMA and Gemma2 are recorded in, and how much of each."""
    yield Case(f"{model}/whole-f32", f"{about}, one call", model, "f32", whole(), what=single)
    text = f"{about}, prefill and steps, chained"
    yield Case(f"{model}/decode-f32", text, model, "f32", decode, what=_CHAINED)
    text = f"{about}, two chunks, chained"
    yield Case(f"{model}/chunked-f32", text, model, "f32", chunked, what=cut)
    text = f"{about}, left padding, rows without a key {padding.masked_rows}, chained"
    yield Case(f"{model}/padded-decode-f32", text, model, "f32", padded_decode, what=padding)
    text = f"{about}, 16 bits, chained"
    yield Case(f"{model}/decode-bf16", text, model, "bf16", decode, what=_CHAINED)
    yield Case(f"{model}/whole-f16", f"{about}, 16 bits", model, "f16", whole(), what=_PLAIN)


def _all_cases() -> Iterator[Case]:
    a1, a4 = "llama-a1", "gemma2-a4"
    yield from _main_cases(a1, "LLaMA", What(), _CHAINED_PLAIN, _CHAINED_JUDGED)
    fused = "LLaMA with torch's fused attention"
    yield Case(f"{a1}/decode-f32-sdpa", fused, a1, "f32", decode, "sdpa", _TWO_LAYERS)
    yield Case(
        f"{a1}/padded-f32-sdpa",
        "rows without a key are zero under fused attention",
        a1,
        "f32",
        padded(),
        "sdpa",
        What(blocks=("causal_mask", "sdpa"), layers=(0,), internals=False, masked_rows="judged"),
    )
    yield Case(
        f"{a1}/padded-f32-sdpa-t16",
        "a bool mask whose rows have 16 bytes",
        a1,
        "f32",
        padded(16),
        "sdpa",
        What(blocks=("causal_mask",), internals=False),
    )
    for model in ("llama-a2-mqa", "llama-a2-mha"):
        about = "biases, head_dim 12, " + ("one kv head" if model.endswith("mqa") else "no groups")
        yield Case(f"{model}/whole-f32", about, model, "f32", whole(), what=_ONE_LAYER)
    for kind in ("linear", "llama3", "yarn", "yarn-exact", "yarn-long", "yarn-mscale"):
        model = f"llama-a3-{kind}"
        yield Case(f"{model}/whole-f32", f"rotary {kind}", model, "f32", whole(), what=_ROTARY)
    for kind, lengths in (("longrope", (10, 11)), ("dynamic", (14, 11, 10, 9))):
        model, about = f"llama-a3-{kind}", f"rotary {kind}, calls of {lengths} tokens"
        yield Case(f"{model}/whole-f32", about, model, "f32", calls(*lengths), what=_ROTARY)
    cut, padding = (replace(what, layers=(0, 1)) for what in (_CHAINED_PLAIN, _CHAINED_JUDGED))
    yield from _main_cases(a4, "Gemma2", _PLAIN, cut, padding)
    for tokens in (4, 5, 6, 11):
        about = f"{tokens} tokens around a window of 5"
        yield Case(f"{a4}/whole-f32-t{tokens}", about, a4, "f32", whole(tokens), what=_MASKS)
    model = "gemma2-a5-no-caps"
    yield Case(
        f"{model}/whole-f32", "Gemma2 without softcaps", model, "f32", whole(), what=_TWO_LAYERS
    )
    model = "gemma2-a5-c48"
    yield Case(
        f"{model}/whole-bf16", "inexact embedding scale", model, "bf16", whole(), what=_TWO_LAYERS
    )
    for dtype in ("f32", "bf16"):
        about = "blocks LLaMA and Gemma2 lack"
        yield Case(f"blocks/whole-{dtype}", about, "blocks", dtype, whole(9))
        about += ", fused attention, a bool mask"
        yield Case(f"blocks/whole-{dtype}-sdpa", about, "blocks", dtype, whole(9), "sdpa", _MASKED)
    model = "llama-outliers"
    for dtype in ("f32", "bf16"):
        about = "outlier channels and a massive activation"
        yield Case(f"{model}/whole-{dtype}", about, model, dtype, whole(), what=_TWO_LAYERS)
    yield from _zamba2_cases()
    yield from _component_cases()
    yield from _static_cases()


def _component_cases() -> Iterator[Case]:
    """Single operations of each kind: a layer's, and those that only some models have."""
    for dtype, tokens in (("f32", 5), ("bf16", 6)):  # rows of whole 16 bytes, and others
        name = f"whole-{dtype}-components"
        for model in ("components", "llama-a1"):
            about = f"single operations of {model}"
            yield Case(f"{model}/{name}", about, model, dtype, whole(tokens), what=_COMPONENTS)
        model, about = "zamba2-a6", "Zamba2, the mixer's operations and the updates of its states"
        mode, what = f"chunked-{dtype}-components", _STATES if dtype == "f32" else _ONE_STATE
        yield Case(f"{model}/{mode}", about, model, dtype, chunks_of(2, 5, 1), what=what)
    name, about = "llama-a1/whole-bf16-components-t72", "keys turned in whole vectors, over a tile"
    yield Case(name, about, "llama-a1", "bf16", whole(72, batch=1), what=_TURNED)
    name, about = "llama-a1/padded-decode-f32-positions", "position ids of padded rows"
    yield Case(name, about, "llama-a1", "f32", padded_decode, what=_POSITIONS)


def _static_cases() -> Iterator[Case]:
    """Buffers of 7 to 16 slots, and of 5 where a layer has Gemma2's window."""
    a1, a4 = "llama-a1", "gemma2-a4"

    def case(name: str, about: str, plan: Plan, what: What) -> Case:
        model, mode = name.split("/")
        text = f"static cache, {about}" + (", chained" if what.chained else "")
        return Case(name, text, model, mode.split("-")[-2], plan, what=what)

    short, padded = static(8, 3, 2, batch=1), padded_decode_of(4, 1, (2, 0), max_length=8)
    text = "full, prefill and steps"
    yield case(f"{a1}/decode-f32-static", text, static(12, 7, steps=2), _SEEN)
    yield case(f"{a1}/chunked-f32-static", "full, chunks 3, 2", short, _CHAIN)
    yield case(f"{a1}/padded-decode-f32-static", "full, left padding", padded, _STATIC_PADDED)
    text = "full and sliding layers, steps past the window"
    yield case(f"{a4}/decode-f32-static", text, static(12, 3, steps=5, batch=1), _CACHES)
    yield case(f"{a4}/decode-bf16-static", text, static(7, 3, steps=3), _CHAIN)
    text = "full and sliding layers, left padding, prefill shorter than the window"
    yield case(f"{a4}/padded-decode-f32-static", text, padded, _STATIC_PADDED)
    text, plan = "full and sliding layers, chunks 3, 4, 6, 1", static(16, 3, 4, 6, 1, batch=1)
    yield case(f"{a4}/chunked-f32-static", text, plan, _CACHES)
    name, text = f"{a4}/chunked-f32-static-joins", "static cache, chunks 7, 1, 3"
    yield Case(name, text, a4, "f32", static(16, 7, 1, 3), what=_JOINED)


def _zamba2_cases() -> Iterator[Case]:
    model, about = "zamba2-a6", "Zamba2"

    def case(mode: str, text: str, plan: Plan, what: What) -> Case:
        dtype = mode.split("-")[-2 if mode.endswith(("-mixer", "-layer")) else -1]
        return Case(f"{model}/{mode}", f"{about}, {text}", model, dtype, plan, what=what)

    yield case("whole-f32", "three chunks of the scan", whole(20), _ZAMBA2_FIRST)
    text = "mixer: tokens around the kernel of 4 and the scan's chunks of 8"
    yield case("whole-f32-mixer", text, calls(1, 3, 4, 8, 9), _MIXER)
    yield case("whole-f32-layer", "a hybrid layer's operations", whole(9), What(layers=(1,)))
    yield case("whole-f16", "16 bits", whole(9), _ZAMBA2_PLAIN)
    short = decode_of(9, 2)
    yield case("decode-f32", "prefill and steps, all layers, chained", short, _ZAMBA2_CHAINED)
    yield case("decode-bf16", "16 bits, all layers, chained", short, _ZAMBA2_CHAINED)
    text = "mixer: sixteen bits, a state that eight steps round"
    yield case("decode-bf16-mixer", text, decode_of(PREFILL, 8), _MIXER)
    cut = replace(_ZAMBA2_CHAINED, blocks=_ZAMBA2_KINDS, layers=(0, 4))
    yield case("chunked-f32", "two chunks, chained", chunked, cut)
    text = "mixer: states shorter than the kernel, a step between chunks"
    yield case("chunked-f32-mixer", text, chunks_of(1, 1, 2, 9, 8), _MIXER)
    cut = replace(_ZAMBA2_PADDED, chained=True)
    yield case("padded-decode-f32", "left padding, chained", padded_decode_of(9, 2), cut)
    model, about = "zamba2-a7", "Zamba2 without rotary and attention adapters, one shared block"
    yield case("whole-f32", "one call", whole(), _ZAMBA2_FIRST)
    yield case("decode-f32", "prefill and steps", short, _ZAMBA2_FIRST)
    model, about = "zamba2-a8", "Zamba2 with a lower limit on dt and biases"
    yield case("whole-f32", "one call", whole(), _ZAMBA2_PLAIN)
    yield case("decode-f32", "prefill and steps", short, _ZAMBA2_PADDED)
    yield case("padded-decode-f32-mixer", "a bias that leaks from padding", padded_decode, _MIXER)


MODEL_CASES: tuple[Case, ...] = (*_all_cases(), *further_cases())
CASES: tuple[Case | BorderCase, ...] = (*MODEL_CASES, *BORDER_CASES)


def select(only: str | None) -> list[Case | BorderCase]:
    """The cases whose name matches the regular expression; FormatError if there is none."""
    found = [case for case in CASES if only is None or re.search(only, case.name)]
    if not found:
        raise FormatError(f"no case matches {only!r}; inspector fixtures --list shows all")
    return found


def generate(out: Path, only: str | None = None) -> None:
    """Records the cases anew and puts them under `out`; one that gave the same bits stays.

    Raises FormatError where a recording is invalid or too large, or where weights that recordings
    outside the selection share have changed; then `out` is as it was.
    """
    cases = select(only)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fixtures-", dir=out) as scratch:
        made = Path(scratch)
        for case in cases:
            _record(case, made)
            limit = border_cases.LIMIT if isinstance(case, BorderCase) else CASE_LIMIT
            _check_size(case.name, _folder_bytes(made / case.name), limit)
        _check_weights(out, made, cases)
        for case in cases:
            _install(case, made, out)
        for weights in made.glob("*/weights-*.safetensors"):
            weights.replace(out / weights.relative_to(made))
    _check_size("all recordings", _tree_bytes(out), TOTAL_LIMIT)


def check(out: Path, only: str | None = None) -> int:
    """Records the cases anew and compares bit for bit with those under `out`: how many differ.

    The same bits are to be expected from the same torch build on the same kind of processor only.
    """
    differing = 0
    with tempfile.TemporaryDirectory(prefix="plumbline-fixtures-") as scratch:
        for case in select(only):
            _record(case, Path(scratch), quiet=True)
            text = _difference(out / case.name, Path(scratch) / case.name)
            differing += text is not None
            print(f"{case.name:36} {text or 'same'}")
    return differing


def _record(case: Case | BorderCase, out: Path, *, quiet: bool = False) -> None:
    folder = out / case.name
    command = f"inspector fixtures --only '^{case.name}$'"
    with _one_thread():
        summary = case.record(Where(folder, command, case.name, created=_created()))
    if findings := validate(folder):
        raise FormatError(f"{case.name} is invalid: {findings[0]} (of {len(findings)})")
    if not quiet:
        size = summary.json_bytes + summary.tensor_bytes
        print(
            f"{case.name:36} {summary.checkpoints:4} checkpoints {format_bytes(size):>8} "
            f"(JSON {format_bytes(summary.json_bytes)})"
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums of a matrix product can depend on how many threads share it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _created() -> str | None:
    """The time of SOURCE_DATE_EPOCH (reproducible-builds.org), or None for now."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return None
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_weights(out: Path, made: Path, cases: list[Case | BorderCase]) -> None:
    """New weights may replace old ones only if every recording that shares them is made anew."""
    names = {case.name for case in cases}
    for new in made.glob("*/weights-*.safetensors"):
        old = out / new.relative_to(made)
        if not old.exists() or old.read_bytes() == new.read_bytes():
            continue
        for recording in find_recordings(old.parent):
            name = f"{old.parent.name}/{recording.name}"
            weights = load_json(recording / RECORDING)["files"].get("weights", {})
            if name not in names and weights.get("path") == f"../{old.name}":
                raise FormatError(
                    f"{old} changes, and {name} shares it but was not selected; make all "
                    f"recordings of {old.parent.name} together"
                )


def _install(case: Case | BorderCase, made: Path, out: Path) -> None:
    old, new = out / case.name, made / case.name
    if old.exists() and _difference(old, new) is None:
        return
    old.parent.mkdir(parents=True, exist_ok=True)
    replace_folder(new, old)


def _difference(old: Path, new: Path) -> str | None:
    """What differs between two recordings, apart from when and on which machine they were made."""
    if not (old / RECORDING).is_file():
        return f"{old} is missing"
    first, second = (_comparable(folder) for folder in (old, new))
    for key in first.keys() | second.keys():
        if first.get(key) != second.get(key) and key != "checkpoints":
            return f"{key} differs"
    pairs = list(zip(first["checkpoints"], second["checkpoints"], strict=False))
    changed = [a["id"] for a, b in pairs if a != b]
    if changed or len(first["checkpoints"]) != len(second["checkpoints"]):
        counts = f"{len(first['checkpoints'])} checkpoints, now {len(second['checkpoints'])}"
        return f"{counts}, {len(changed)} differ, the first {changed[0] if changed else 'none'}"
    return None


def _comparable(folder: Path) -> dict[str, Any]:
    """The recording with tensor keys replaced by hashes, without date and machine."""
    recording = load_json(folder / RECORDING)
    for name in ("created", "producer"):
        del recording["provenance"][name]
    hashes = {key: entry["sha256"] for key, entry in recording.pop("tensors").items()}
    del recording["files"]
    text = re.sub(r'"([tw]\d+)"', lambda m: f'"{hashes.get(m[1], m[1])}"', json.dumps(recording))
    result: dict[str, Any] = json.loads(text)
    return result


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise FormatError(f"{what} take {size} bytes, the limit is {limit}")


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _tree_bytes(out: Path) -> int:
    """Recordings and weights below `out`."""
    folders = find_recordings(out)
    weights = {path for f in folders for path in f.parent.glob("weights-*.safetensors")}
    return sum(map(_folder_bytes, folders)) + sum(path.stat().st_size for path in weights)
