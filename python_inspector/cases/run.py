"""From what a user asks for to a recording: model, token ids, size estimate, the run itself."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError, PlanError
from ..format.folders import is_full_disk, leftover_bytes
from ..format.recording import ITEM_SIZES, TORCH_DTYPES
from ..format.spool import IN_PLACE
from ..format.summary import Summary
from ..format.writer import Progress
from ..models import dispatch, tiny
from ..models.dispatch import DeviceMap
from ..models.inputs import PAD_ID, RunPlan, random_ids, run_model
from ..recorder import session
from ..recorder.asked import first_and_last
from ..recorder.provenance import model_dtype
from ..recorder.where import Where
from ..taps.options import Options
from ..trace.replay import is_aside

TINY = "tiny:"


@dataclass(frozen=True)
class Source:
    """Where the model comes from: `tiny:NAME`, a folder, or the id of a model on the hub."""

    name: str
    dtype: str = "auto"
    attention: str = "eager"
    seed: int = tiny.DEFAULT_SEED
    revision: str | None = None
    device_map: DeviceMap | None = None
    device: str | None = None
    """Of torch; None is the host."""

    @property
    def tiny_name(self) -> str | None:
        return self.name.removeprefix(TINY) if self.name.startswith(TINY) else None

    def require_folder(self) -> None:
        """Raises FormatError for a path where no folder is: the hub would be asked in vain."""
        is_path = self.name.startswith((".", "/", "~")) or self.name.count("/") > 1
        if is_path and not Path(self.name).is_dir():
            raise FormatError(
                f"--model {self.name}: there is no such folder; name one that has config.json, a "
                "model on the hub (owner/name), or tiny:NAME"
            )


def load_model(source: Source) -> torch.nn.Module:
    """The model in eval mode. `auto` is the checkpoint's own dtype, f32 for a tiny model.

    Raises UnknownModelError for a tiny model that does not exist, FormatError for a model that
    transformers cannot load or a device map that does not fit it.
    """
    if source.device is not None:
        return _on_device(_load(source, {}), source.device)
    if source.device_map is None:
        return _load(source, {})
    try:
        dispatch.require_accelerate()
        if source.tiny_name is not None:
            return dispatch.split(_load(source, {}), source.device_map)
        folder = dispatch.offload_folder()
        model = _load(source, {"device_map": source.device_map, "offload_folder": folder.name})
        dispatch.keep_with(model, folder)
        return model
    except FormatError:
        raise
    except (ValueError, RuntimeError) as error:
        raise FormatError(f"--device-map: {_first_line(error)}") from error


def _load(source: Source, placement: dict[str, Any]) -> torch.nn.Module:
    """`placement`: how transformers is to spread it."""
    dtype = None if source.dtype == "auto" else TORCH_DTYPES[source.dtype]
    if source.tiny_name is not None:
        return tiny.build(
            source.tiny_name, dtype or torch.float32, attention=source.attention, seed=source.seed
        )
    source.require_folder()
    from transformers import AutoModelForCausalLM

    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            source.name,
            dtype=dtype or "auto",
            attn_implementation=source.attention,
            revision=source.revision or "main",
            **placement,
        )
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"cannot load {source.name}: {_first_line(error)}") from error
    return model.eval()


def _on_device(model: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return model.to(torch.device(name))
    except (RuntimeError, AssertionError) as error:  # no such device, or the model does not fit
        raise FormatError(f"--device {name}: {_first_line(error)}") from error


def folder_of(source: Source) -> Path | None:
    """Where the model's files are on this machine; None for a tiny model, or where its weights are
    in no safetensors file."""
    if source.tiny_name is not None:
        return None
    if Path(source.name).is_dir():
        folder = Path(source.name)
    else:
        from transformers.utils import cached_file

        revision = source.revision or "main"
        found = cached_file(source.name, "config.json", revision=revision, local_files_only=True)
        folder = Path(str(found)).parent
    return folder if any(folder.glob("*.safetensors")) else None


def tokenize(source: Source, prompts: Sequence[str]) -> list[list[int]]:
    """Ids of each prompt by the model's own tokenizer."""
    if source.tiny_name is not None:
        raise PlanError(f"{source.name} has no tokenizer; use --token-ids or --tokens")
    source.require_folder()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.name, revision=source.revision or "main")
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"no tokenizer for {source.name}: {_first_line(error)}") from error
    return [tokenizer(prompt)["input_ids"] for prompt in prompts]


def stack_rows(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """Rows of different lengths as one batch: ids, and the padding on the left of each row."""
    if any(not row for row in rows):
        raise PlanError("a row has no tokens")
    width = max(len(row) for row in rows)
    pads = tuple(width - len(row) for row in rows)
    ids = [[PAD_ID] * pad + list(row) for pad, row in zip(pads, rows, strict=True)]
    return torch.tensor(ids), pads if any(pads) else None


def check_ids(ids: torch.Tensor, vocab: int) -> None:
    """PlanError for an id that the model has no embedding for."""
    worst = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
    if not 0 <= worst < vocab:
        raise PlanError(f"token id {worst} is outside the model's vocabulary of {vocab}")


def random_run_ids(source: Source, model: torch.nn.Module, batch: int, tokens: int) -> torch.Tensor:
    """Random ids for the model, with its outlier token where it has one."""
    name = source.tiny_name
    marked = None if name is None else tiny.find(name)[1].outlier_token
    return random_ids(batch, tokens, vocabulary(model), seed=source.seed, marked=marked)


def vocabulary(model: torch.nn.Module) -> int:
    """Number of token ids that the model knows."""
    config: Any = model.config
    return int(config.vocab_size)


def record_run(
    model: torch.nn.Module,
    source: Source,
    plan: RunPlan,
    asked: Options,
    where: Where,
    *,
    copy_weights: bool = True,
    advance: Callable[[], None] = lambda: None,
) -> Summary:
    """Runs the plan under a recording; what was written. `advance` is called when a decoder layer
    has run and been recorded; `copy_weights`: rather than refer to the model's own files."""
    config: Any = model.config
    is_tiny = source.tiny_name is not None
    where = replace(
        where,
        model_folder=None if copy_weights else folder_of(source),
        source=TINY + tiny.find(source.tiny_name)[0] if source.tiny_name else source.name,
        seed=source.seed if is_tiny else None,
        revision=None if is_tiny else getattr(config, "_commit_hash", None),
        run=plan.header(),
    )
    with (
        session.record(model, where, asked.what, asked.proof) as recorder,
        _told_of_layers(model, advance),
    ):
        run_model(model, plan)
    assert recorder.summary is not None
    return recorder.summary


@dataclass(frozen=True)
class Estimate:
    """Bytes that a recording will take, roughly."""

    weights: int
    tensors: int

    @property
    def total(self) -> int:
        return self.weights + self.tensors

    @property
    def room(self) -> int:
        """Needed while it is written: small payloads are spooled first, then copied."""
        return (2 if self.total < IN_PLACE else 1) * self.total


def estimate(
    model: torch.nn.Module, plan: RunPlan, asked: Options, *, copies_weights: bool = True
) -> Estimate:
    """The size of a recording before it is made, from the config's widths; within a factor of two.

    Every output is stored with a float32 delta; inputs are mostly outputs of another block. With
    rows, layers have those of each, and the whole ones all tokens of their inputs. A model whose
    config does not have the usual names counts as its weights only.
    """
    config: Any = model.config
    item = ITEM_SIZES[model_dtype(model)]
    weights = sum(parameter.numel() for parameter in model.parameters()) * item
    weights *= copies_weights
    try:
        channels, inner = _of_layers(config.hidden_size), _of_layers(config.intermediate_size)
        heads, layers = _of_layers(config.num_attention_heads), int(config.num_hidden_layers)
        kv_heads = _of_layers(getattr(config, "num_key_value_heads", None) or heads)
        width = getattr(config, "head_dim", None) or channels // heads
    except (AttributeError, TypeError):
        return Estimate(weights, 0)
    what = asked.what
    if what.layers is not None:
        layers = len([index for index in what.layers if index < layers])
    cost = item + (4 if asked.proof.oracle else 0)
    per_token = 9 * channels + 4 * inner + 4 * (heads + kv_heads) * width
    total = 0
    for queries, keys in _call_sizes(plan):
        state = 2 * keys * kv_heads * width if plan.cache else 0
        scores = (6 * heads * queries + 2 * heads * width) * keys if what.internals else 0
        mixed = queries * per_token + state + scores
        rows = queries if what.rows is None else min(queries, what.rows)
        if what.rows is None:
            total += layers * mixed * cost
        else:
            whole = what.whole_layers
            count = len(first_and_last(model) if whole is None else whole)
            total += layers * rows * per_token * cost + count * mixed * item
        total += rows * (2 * config.vocab_size + 3 * channels) * cost
    return Estimate(weights, total * plan.ids.shape[0])


def _of_layers(width: int | Sequence[int]) -> int:
    """A width of the config; the mean where each layer has its own."""
    return int(width) if isinstance(width, int) else round(sum(width) / len(width))


def check_disk(size: Estimate, out: Path, *, kept: int = 0) -> None:
    """FormatError if the disk has less room than the recording needs while it is written, `kept`
    bytes of which are there."""
    folder = next(p for p in [out.absolute(), *out.absolute().parents] if p.exists())
    free = shutil.disk_usage(folder).free + leftover_bytes(out.absolute()) + kept
    if size.room > free:
        raise FormatError(
            f"the recording needs about {size.room} bytes while it is written, {folder} "
            f"has {free}; record fewer --layers or --blocks, or fewer tokens (--rows)"
        )


@contextmanager
def told_of_room(size: Estimate) -> Iterator[None]:
    """Where the disk is full after all, a note says what the recording needs."""
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            error.add_note(
                f"the whole recording needs about {size.room} bytes while it is written: free what "
                "is missing, or record elsewhere (--out)"
            )
        raise


@contextmanager
def progress_bar(
    total: int, unit: str, *, quiet: bool = False
) -> Iterator[tuple[Callable[[], None], Progress]]:
    """A bar with rate and time left, on a terminal: callbacks for a unit's end and the writer."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, disable=True if quiet else None, leave=False) as bar:

        def advance() -> None:
            bar.update(1)

        def progress(checkpoints: int, size: int) -> None:
            bar.set_postfix_str(f"{checkpoints} checkpoints, {size / 1e6:.1f} MB", refresh=False)

        yield advance, progress


@contextmanager
def _told_of_layers(model: torch.nn.Module, advance: Callable[[], None]) -> Iterator[None]:
    """Hooks that come after the recorder's own."""

    def hook(*_: Any) -> None:
        if not is_aside():
            advance()

    handles = [layer.register_forward_hook(hook) for layer in layers_of(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The decoder layers; the model itself where it has none by that name."""
    named = model.named_modules()
    return [m for path, m in named if re.fullmatch(r"(.*\.)?layers\.\d+", path)] or [model]


def _call_sizes(plan: RunPlan) -> list[tuple[int, int]]:
    """Queries and keys of each forward call."""
    if plan.cache is None:
        return [(n, n) for n in plan.chunks or (plan.tokens,)]
    sizes, seen = [], 0
    for queries in [*(plan.chunks or (plan.tokens,)), *[1] * plan.steps]:
        seen += queries
        sizes.append((queries, seen))
    return sizes


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
