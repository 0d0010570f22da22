"""record(), save() and note(): what a script uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import torch

from ..compatibility import check_model_type, newer_than_proven
from ..errors import RecordError
from ..format.blocks import BLOCKS
from ..format.contract_words import RECORDED, asked, in_order, misfit
from ..format.model_files import ModelFolder
from ..format.recording import DTYPES
from ..format.sampled import Sampling
from ..format.writer import Progress, RecordingWriter
from ..models import dispatch
from ..models.parameters import first_names
from ..taps import taps_for
from ..taps.options import Options
from ..trace.spread import DEFAULT_RUNS
from . import guards, provenance
from .internals import OperationMode
from .patches import function_patches
from .recorder import Recorder

_active: ContextVar[tuple[Recorder, ...]] = ContextVar("python_inspector_recorders", default=())


@contextmanager
def record(
    model: torch.nn.Module,
    out: Path | str,
    *,
    blocks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
    calls: Collection[int] | None = None,
    oracle: bool | Literal["leaves"] = True,
    internals: bool = True,
    force: bool = False,
    masked_rows: Literal["excluded", "judged"] = "excluded",
    sampling: Sampling | None = None,
    direct: bool = False,
    chained: bool = False,
    spread: int = DEFAULT_RUNS,
    bugs: bool = True,
    rows: int | None = None,
    whole_layers: Collection[int] | None = None,
    outside: bool = True,
    chain_elsewhere: bool = False,
    contract: str | None = None,
    weights_path: Path | str | None = None,
    model_folder: Path | str | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    source: str | None = None,
    seed: int | None = None,
    revision: str | None = None,
    run: Mapping[str, Any] | None = None,
    command: str | None = None,
    created: str | None = None,
    weights_sha256: Callable[[], str] | None = None,
) -> Iterator[Recorder]:
    """Records every forward call of `model` inside the block into the folder `out`.

    Each call of the model is a step. The files appear when the block ends; an exception leaves
    nothing behind. The model computes the same bits as without recording.

    `blocks`, `layers`: record only these kinds, only these decoder layers (by index; what stands
    outside the layers is recorded all the same, unless `outside` is False). `calls`: only these
    forward calls of the model, by number from 0; all must be made, from the first on.
    `oracle`: False records without the float64 oracle (delta is null then, and the recording says
    so); "leaves" records no composite blocks and no single operations, which is faster.
    `internals`: single torch operations inside functions.
    `masked_rows`: attention rows without any allowed key are "excluded" from judging or "judged";
    those of an attention that makes NaN of one, as float16 may, are never judged.
    `sampling`: of large outputs only chosen rows and a sketch of all are stored, see
    format/sampled.py.
    `direct`: only what the model's own forward calls, not what runs inside that.
    `chained`: the model also runs as a whole in float64, over all calls; what its layers, caches
    and head gave is recorded beside what they gave in the run (chain.py). `chain_elsewhere`: all
    that a chained recording holds is left out, because another one of the run has it.
    `spread`: as many simulated correct kernels say what a correct kernel may show, see
    trace/spread.py; 0 leaves them and the rounded model out, which is faster.
    `bugs`: calls without a native block get other ways to round and planted bugs, as far as that is
    affordable, see trace/judgement.py; without them recording is faster.
    `rows`: of calls with more tokens only so many are recorded, of blocks that compute each token
    by itself; other blocks in `whole_layers` alone (by default the first layer of each kind and
    the last), with their inputs whole and their large outputs sampled. A model of billions of
    parameters then takes less than a gigabyte beside its weights.
    `contract`: what simulated kernels do inside ("eager+sums-16", see format/contract_words.py), so
    that kernels may; checkpoints where it changes anything state it.
    `weights_path`: a weights file beside `out` that several recordings of the model share.
    `model_folder`: the folder that the model was loaded from. Weights that its safetensors files
    hold are referred to (file, name, SHA-256) instead of copied.
    `source`, `seed`, `revision`, `run`, `command`, `created`: for the provenance; `run` overrides
    what is seen; `weights_sha256` gives that of all weights where it is known. `force`: records
    what a guard would refuse, with a warning.

    Raises RecordError where a recording would mislead (guards.py), FormatError and OSError as
    RecordingWriter does. The recorder's `summary` is what was written.
    """
    _check_options(model, blocks, layers, oracle, masked_rows)
    _check_calls(calls, chained)
    if spread < 0:
        raise RecordError(f"[record] spread is {spread}; it counts simulated kernels, 0 for none")
    if chained and (direct or sampling is not None or oracle is not True):
        raise RecordError(
            "[record] chained needs whole outputs and the oracle of every block: no direct, no "
            f"sampling, and oracle=True (it is {oracle!r})"
        )
    if rows is not None:
        _check_rows(rows, chained, whole_layers, model)
        sampling = sampling or Sampling()
    elif whole_layers is not None:
        raise RecordError("[record] whole_layers goes with rows: without it every layer is whole")
    if chained and dispatch.offloads(model):
        raise RecordError(
            "[record] chained runs the whole model at once, but some of its weights are offloaded "
            "by its device map; leave chained out, or use a map of devices that hold all of it"
        )
    inside = _inside(contract, model)
    if inside and not (spread and oracle):
        raise RecordError(
            f"[record] contract {contract} is what simulated kernels do beside the oracle: no "
            f"oracle=False (it is {oracle!r}), and spread above 0 (it is {spread})"
        )
    out = Path(out)
    options = Options(
        blocks,
        layers,
        calls,
        oracle,
        internals,
        force,
        masked_rows,
        sampling,
        direct,
        chained,
        spread,
        bugs and spread > 0,
        rows,
        frozenset(first_and_last(model) if whole_layers is None else whole_layers),
        outside,
        chain_elsewhere,
        inside,
    )
    taps = taps_for(model)
    check_model_type(guards.model_type_of(model), chained)
    warnings = guards.check_model(model, taps, force)
    shared = None if weights_path is None else Path(weights_path)
    files = None if model_folder is None else ModelFolder(Path(model_folder))
    label = name or f"{out.resolve().parent.name}/{out.resolve().name}"
    given = {"source": source, "seed": seed, "revision": revision, "run": run or {}}
    given |= {"run": dict(run or {}) | {"spread": spread if oracle else 0}}
    with RecordingWriter(
        out,
        weights_path=shared,
        model_folder=files,
        progress=progress,
    ) as writer:
        recorder = Recorder(model, writer, taps, options)
        _introduce(recorder, warnings)
        weights_sha256 = weights_sha256 or provenance.promised_weights_sha256(model)
        if shared is not None or chained:  # all weights, whatever is recorded
            for key, tensor in dispatch.parameters(model, first_names(model)):
                writer.weight(key, tensor)
        with _listening(recorder):
            yield recorder
        recorder.settle()
        _require_made(calls, len(recorder.runs))
        for word in in_order(inside - writer.inside):
            writer.warn(f"contract has {word}, which changes nothing that is recorded here")
        given |= {"weights_sha256": weights_sha256()}
        recorder.summary = writer.commit(
            provenance.header(
                model, label, recorder.runs, given | {"command": command, "created": created}
            )
        )
        if files is not None:
            files.keep()


def save(name: str, tensor: torch.Tensor, axes: tuple[str, ...] | None = None) -> None:
    """Keeps a tensor of one's own modelling code in the recording that is running, if one is.

    It becomes a checkpoint of kind `module` with an output and nothing else, called
    `<path of the module that is running>:<name>#<call>`. Without `axes` (one name per dimension)
    they are guessed from the number of dimensions. There is no oracle for it: it is to look at.
    """
    if recorders := _active.get():
        recorders[-1].save(name, tensor, axes)


def note(**values: Any) -> None:
    """Adds values to the notes of the recording that is running, if one is."""
    if (recorders := _active.get()) and not recorders[-1].passive():
        recorders[-1].writer.note(**values)


@contextmanager
def _listening(recorder: Recorder) -> Iterator[None]:
    """Hooks, patches, modes and flags: all on, and all put back whatever happens."""
    with ExitStack() as stack:
        switched_off = stack.enter_context(guards.exact_products())
        if switched_off:
            recorder.writer.note(switched_off=sorted(switched_off))
        stack.enter_context(_fewer_threads(recorder.model))
        token = _active.set((*_active.get(), recorder))
        stack.callback(_active.reset, token)
        for path, module in recorder.model.named_modules():
            for handle in recorder.hooks(path, module):
                stack.callback(handle.remove)
        stack.enter_context(function_patches(recorder))
        if recorder.options.operations:
            stack.enter_context(OperationMode(recorder))
        yield


@contextmanager
def _fewer_threads(model: torch.nn.Module) -> Iterator[None]:
    """Where all is computed on an accelerator, only small tensors come to the host: to wake threads
    for them takes longer than what they do."""
    places = {parameter.device.type for parameter in model.parameters()}
    threads = torch.get_num_threads()
    if places and not places & {"cpu", "meta"}:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _introduce(recorder: Recorder, warnings: list[str]) -> None:
    """Warnings that hold from the start."""
    for text in warnings:
        recorder.warn(text)
    if recorder.taps.architecture is None:
        kind = getattr(getattr(recorder.model, "config", None), "model_type", None)
        recorder.warn(
            f"there are no taps for {type(recorder.model).__name__} (model_type {kind}): its "
            "modules and functions are recorded as blocks of kind `module`"
        )
    if missing := recorder.taps.missing:
        recorder.warn(
            f"the modeling files of {type(recorder.model).__name__} have no {', '.join(missing)}, "
            "which its taps are named after: what no tap describes is recorded as blocks of kind "
            f"`module`{newer_than_proven()}"
        )
    if recorder.options.oracle is False:
        recorder.writer.note(oracle=False)
        recorder.warn("recorded without the float64 oracle: the reference counts as exact")


def first_and_last(model: torch.nn.Module) -> list[int]:
    """The first decoder layer of each kind (attention with and without a window, mamba, hybrid) and
    the last one."""
    config = getattr(model, "config", None)
    count = int(getattr(config, "num_hidden_layers", 0))
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    firsts = {kind: i for i, kind in reversed([*enumerate(kinds or [""])])}
    return sorted({*firsts.values(), max(0, count - 1)})


def _inside(contract: str | None, model: torch.nn.Module) -> frozenset[str]:
    """What a contract asks of simulated kernels; a recording rounds where the model's code does."""
    try:
        inside = asked(contract, RECORDED).inside
    except ValueError as error:
        raise RecordError(f"[record] {error}") from None
    parameters = {DTYPES[p.dtype] for p in model.parameters() if p.dtype in DTYPES}
    if why := misfit(inside, parameters, "no parameter of the model"):
        raise RecordError(f"[record] {why}")
    return inside


def _check_rows(
    rows: int, chained: bool, whole_layers: Collection[int] | None, model: torch.nn.Module
) -> None:
    if rows < 2:
        raise RecordError(f"[record] rows is {rows}; at least 2, the first and the last token")
    if chained:
        raise RecordError("[record] chained needs every token of every layer: record without rows")
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    if bad := [i for i in whole_layers or () if i < 0 or (count is not None and i >= count)]:
        raise RecordError(f"[record] whole_layers holds {bad[0]}, the model has {count} layers")


def _check_calls(calls: Collection[int] | None, chained: bool) -> None:
    if calls is None:
        return
    if chained:
        raise RecordError("[record] chained goes from call to call: record all calls")
    if bad := [i for i in calls if not isinstance(i, int) or i < 0]:
        raise RecordError(f"[record] calls holds {bad[0]!r}; give numbers from 0")


def _require_made(calls: Collection[int] | None, made: int) -> None:
    if missing := sorted(i for i in calls or () if i >= made):
        raise RecordError(
            f"[record] calls holds {missing[0]}, the model was called {made} times, counted from 0"
        )


def _check_options(
    model: torch.nn.Module,
    blocks: Collection[str] | None,
    layers: Collection[int] | None,
    oracle: bool | str,
    masked_rows: str,
) -> None:
    if oracle not in (True, False, "leaves"):
        raise RecordError(f'[record] oracle is {oracle!r}; it is True, False or "leaves"')
    if masked_rows not in ("excluded", "judged"):
        raise RecordError(f'[record] masked_rows is {masked_rows!r}; it is "excluded" or "judged"')
    if isinstance(blocks, str):
        raise RecordError(f"[record] blocks is the string {blocks!r}; give a list of kinds")
    unknown = sorted(set(blocks or ()) - {*BLOCKS, "module"})
    if unknown:
        raise RecordError(f"[record] unknown block {unknown[0]!r}; known are {', '.join(BLOCKS)}")
    if layers is not None and (bad := [i for i in layers if not isinstance(i, int) or i < 0]):
        raise RecordError(f"[record] layers holds {bad[0]!r}; give indices from 0")
    if not isinstance(model, torch.nn.Module):
        raise RecordError(f"[record] model is a {type(model).__name__}, not a torch.nn.Module")
