"""Runs the calls of a recording again: oracle, simulated kernels, the same once more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ..errors import HarnessError
from ..format.recording import call_of, is_recorded_alone
from ..native import judge_library
from ..taps.architectures import Taps
from ..taps.calls import Block
from ..taps.options import Options
from ..trace.contracts import Inside
from ..trace.lift import LiftError
from ..trace.replay import Again
from ..trace.reruns import Reruns, rerun, rerun_anything
from .alternatives import judgement_of


class Rerunner:
    """Runs calls again as `options` ask for."""

    def __init__(self, options: Options, taps: Taps, warn: Callable[[str], None]) -> None:
        self._options = options
        self._taps = taps
        self.warn = warn
        self._told = False

    def reruns(self, block: Block, again: Again, seed: str, *, first: bool, bugs: bool) -> Reruns:
        """The reruns of the call with this id; the `first` of each path and function is also
        repeated, and has `bugs` planted."""
        if not self._options.proof.oracle:
            return Reruns()
        repeat = first and not block.of_rows  # other products may be used for fewer rows
        reruns = self.rerun(block, again, seed, repeat=repeat)
        self.judge(block, again, reruns, seed, bugs=first and bugs)
        return reruns

    def judge(self, block: Block, again: Again, reruns: Reruns, seed: str, *, bugs: bool) -> None:
        """Other ways to round, and bugs, of a call that the recording alone judges."""
        if self._has_judge(block):
            reruns.judgement = judgement_of(block, again, reruns, self._options, seed, bugs=bugs)

    def _has_judge(self, block: Block) -> bool:
        """Says so once where there is none for a block that needs one."""
        if not is_recorded_alone(block.kind, block.params) or not self._options.bugs:
            return False
        try:
            judge_library()
        except HarnessError as error:
            if not self._told:
                self.warn(f"other roundings and bugs are not sought: {error}")
            self._told = True
            return False
        return True

    def rerun(self, block: Block, again: Again, seed: str, *, repeat: bool) -> Reruns:
        """The oracle, simulated kernels and, where it is to `repeat`, the same once more."""
        runs = self._options.proof.spread
        operands = [t for t, _ in block.inputs.values()] + list(block.weights.values())
        inside = Inside.of(self._options.inside, operands)
        if block.settle is None:
            try:
                reruns, warnings = rerun(
                    block.outputs, again, seed, runs=runs, repeat=repeat, inside=inside
                )
            except LiftError as error:
                if self._taps.architecture is not None:
                    raise
                reruns, warnings = Reruns(), [f"{call_of(seed)} has no oracle: {error}"]
        else:
            settle = partial(block.settle, block)
            try:
                reruns, warnings = rerun_anything(
                    block.outputs, again, seed, settle, runs=runs, repeat=repeat, inside=inside
                )
            except torch.OutOfMemoryError as error:
                text = str(error).partition("\n")[0]
                reruns, warnings = Reruns(), [f"{call_of(seed)} has no oracle: {text}"]
            for name, elements in reruns.undecided.items():
                named = (reruns.oracle or {})[name]
                if named[0].is_floating_point():
                    block.valid[name] = (~elements.mask, named[1])
        for text in warnings:
            self.warn(text)
        return reruns
