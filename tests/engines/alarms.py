"""How often whole models are misjudged: python -m tests.engines.alarms [--seed N] [--count N].

Draws models as the panel does, records them, and judges engines that are right (another attention,
row by row, all at once, wider) and engines with a planted fault, with layers and by logits alone.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import python_inspector
from python_inspector.engines.capture import capture
from python_inspector.errors import FormatError
from python_inspector.models.inputs import run_model
from python_inspector.taps.options import Proof, What
from tests.panel.draw import Draw, draw
from tests.panel.table import upper_bound
from tests.panel.trial import prepare

Change = Callable[[Any], bool]
"""Plants a fault in a model; False where it has no place for it."""


def engine(model: Any, *, layers: bool) -> Callable[[Any, Any], Any]:
    names = ("model.embed_tokens", "model.layers.{}")
    mapping = {name: name for name in names} if layers else {}

    def run(ids: Any, cache: Any) -> Any:
        with torch.no_grad(), capture(model, mapping) as taken:
            out = model(ids, past_key_values=cache, use_cache=True)
        return {"logits": out.logits, **taken}, out.past_key_values

    return run


def whole(model: Any) -> Callable[[Any], Any]:
    def run(ids: Any) -> Any:
        with torch.no_grad():
            return model(ids, use_cache=False).logits

    return run


def right(drawn: Draw) -> Iterator[tuple[str, Any, Callable[..., Any], bool]]:
    """Name, model, function, whether by rows."""
    model = drawn.model()
    by_row = bool(drawn.left_pad)
    by_length = any(kind in mark for mark in drawn.marks for kind in ("dynamic", "longrope"))
    if by_length and by_row:  # the batch's longest row sets the angles of all: alone they differ
        return
    if not by_length:  # what one row grew stays for the next
        yield "row by row", model, engine(model, layers=True), True
    if drawn.family != "gemma2":  # whose softcap sdpa drops
        other = copy.copy(drawn).__class__(**{
            **vars(drawn), "attention": "sdpa" if drawn.attention == "eager" else "eager"
        }).model()  # fmt: skip
        yield "another attention", other, engine(other, layers=True), by_row
    if not by_length and drawn.family != "zamba2":
        yield "all at once", model, whole(model), by_row
    if drawn.dtype != "f32":
        wide = drawn.model().float()
        _keep_constants(wide, model)
        yield "float32 throughout", wide, engine(wide, layers=True), by_row


def _keep_constants(wide: Any, model: Any) -> None:
    """Gemma's scale of embeddings is rounded to the dtype of the weights, and is one of them."""
    scale = getattr(model.model.embed_tokens, "embed_scale", None)
    if scale is not None:
        wide.model.embed_tokens.embed_scale = scale.float()


def theta(model: Any) -> bool:
    if not hasattr(model.model, "rotary_emb"):
        return False
    model.model.rotary_emb.inv_freq *= 0.9
    model.model.rotary_emb.original_inv_freq = model.model.rotary_emb.inv_freq
    return True


def scale(model: Any) -> bool:
    for layer in model.model.layers:
        if not hasattr(layer, "self_attn"):
            return False
        layer.self_attn.scaling *= 1.1
    return True


def layers_exchanged(model: Any) -> bool:
    layers = model.model.layers
    if len(layers) < 2 or not hasattr(layers[0], "mlp"):
        return False
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp
    return True


def no_softcap(model: Any) -> bool:
    if not getattr(model.config, "attn_logit_softcapping", None):
        return False
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    return True


def no_window(model: Any) -> bool:
    if not getattr(model.config, "sliding_window", None):
        return False
    model.config.sliding_window = 1000
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    return True


def final_norm(model: Any) -> bool:
    if not hasattr(model.model, "norm"):
        return False
    model.model.norm.weight.data = model.model.norm.weight.data * 1.05
    return True


FAULTS: tuple[Change, ...] = (
    theta, scale, layers_exchanged, no_softcap, no_window, final_norm
)  # fmt: skip


def judged(function: Callable[..., Any], folder: Path, rows: bool) -> python_inspector.Verdict:
    return python_inspector.verify_model(function, folder, rows=rows)


def logits_of(model: Any, drawn: Draw) -> torch.Tensor:
    return torch.cat([step.float() for step in run_model(model, drawn.plan())], 1)


def trial(drawn: Draw, counts: Counter[tuple[str, str, str]]) -> None:
    if drawn.family == "zamba2" and drawn.left_pad:
        return  # transformers lets padding into the states of a single sequence
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        folder = Path(name) / "r"
        model = drawn.model()
        with (
            warnings.catch_warnings(action="ignore"),
            python_inspector.record(model, folder, What(blocks=()), Proof(chained=True)),
        ):
            run_model(model, drawn.plan())
        for kind, _, function, rows in right(drawn):
            verdict = judged(function, folder, rows)
            counts["right", kind, verdict.status] += 1
            if verdict.status not in ("pass", "blind"):
                print(f"{drawn.index} {drawn.about()}: {kind}: {verdict}", flush=True)
        exact = logits_of(model, drawn)
        for fault in FAULTS:
            broken = drawn.model()
            if not fault(broken) or torch.equal(logits_of(broken, drawn), exact):
                continue
            for layers, words in ((True, "layers"), (False, "logits")):
                function = engine(broken, layers=layers)
                verdict = judged(function, folder, bool(drawn.left_pad))
                counts[f"{fault.__name__}, {words}", drawn.dtype, verdict.status] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=25)
    options = parser.parse_args()
    prepare()
    counts: Counter[tuple[str, str, str]] = Counter()
    refused = 0
    for index in range(options.count):
        try:
            trial(draw(options.seed, index), counts)
        except (python_inspector.RecordError, FormatError):
            refused += 1
    print(f"seed {options.seed}, {options.count} draws, {refused} refused by the recorder")
    for group, of in sorted({key[:2] for key in counts}, reverse=True):
        found = {key[2]: n for key, n in counts.items() if key[:2] == (group, of)}
        words = ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
        print(f"{group:28} {of:20} {words}")
    fine = sum(n for key, n in counts.items() if key[0] == "right")
    alarms = sum(n for key, n in counts.items() if key[0] == "right" and key[2] == "fail")
    bound = upper_bound(alarms, fine) if fine else 1.0
    print(f"right engines: {alarms} of {fine} fail, rate below {100 * bound:.2g} %, 95 % sure")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
