"""record(), save() and note(): what a script uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from ..compatibility import check_model_type
from ..errors import RecordError
from ..format.contract_words import in_order
from ..format.model_files import ModelFolder
from ..format.writer import RecordingWriter
from ..models import dispatch
from ..models.parameters import first_names
from ..taps.architectures import taps_for
from ..taps.options import Proof, What
from ..versions import newer_than_proven
from . import guards, provenance
from .asked import asked_options
from .backward_calls import SEED
from .internals import OperationMode
from .patches import function_patches
from .recorder import Recorder
from .where import Where

_active: ContextVar[tuple[Recorder, ...]] = ContextVar("python_inspector_recorders", default=())


@contextmanager
def record(
    model: torch.nn.Module,
    where: Where | Path | str,
    what: What = What(),  # noqa: B008
    proof: Proof = Proof(),  # noqa: B008
) -> Iterator[Recorder]:
    """Records every forward call of `model` inside the block into the folder `where`.

    Each call of the model is a step. The files appear when the block ends; an exception leaves
    nothing behind. The model computes the same bits as without recording. What is in What, Proof
    and Where says the rest.

    Raises RecordError where a recording would mislead (guards.py), FormatError and OSError as
    RecordingWriter does. The recorder's `summary` is what was written.
    """
    where = where if isinstance(where, Where) else Where(where)
    options = asked_options(model, what, proof)
    what = options.what
    taps = taps_for(model)
    check_model_type(guards.model_type_of(model), proof.chained)
    warnings = guards.check_model(model, taps, what.force)
    files = None if where.model_folder is None else ModelFolder(Path(where.model_folder))
    with RecordingWriter(
        Path(where.folder),
        weights_path=None if where.weights_path is None else Path(where.weights_path),
        model_folder=files,
        progress=where.progress,
    ) as writer:
        recorder = Recorder(model, writer, taps, options)
        _introduce(recorder, warnings)
        weights_sha256 = where.weights_sha256 or provenance.promised_weights_sha256(model)
        if where.weights_path is not None or proof.chained:  # all weights, whatever is recorded
            for key, tensor in dispatch.parameters(model, first_names(model)):
                writer.weight(key, tensor)
        with _listening(recorder):
            yield recorder
        recorder.settle()
        _require_made(what.calls, len(recorder.runs))
        for word in in_order(options.inside - writer.inside):
            writer.warn(f"contract has {word}, which changes nothing that is recorded here")
        run = dict(where.run or {}) | {"spread": proof.spread if proof.oracle else 0}
        recorder.summary = writer.commit(
            provenance.header(model, where, run, recorder.runs, weights_sha256())
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
    if recorder.options.proof.backward:
        recorder.writer.note(cotangents={"distribution": "normal", "seed": SEED})
    if recorder.options.proof.oracle is False:
        recorder.writer.note(oracle=False)
        recorder.warn("recorded without the float64 oracle: the reference counts as exact")


def _require_made(calls: Collection[int] | None, made: int) -> None:
    if missing := sorted(i for i in calls or () if i >= made):
        raise RecordError(
            f"[record] calls holds {missing[0]}, the model was called {made} times, counted from 0"
        )
