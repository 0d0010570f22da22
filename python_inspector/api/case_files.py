"""The files of prepared calls: their recording, and what a kernel returned, for the judge."""

from __future__ import annotations

import functools
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..format import scratch
from ..format.operands import Output, save
from ..native import judge_library
from .keeping import CALL, OUTPUTS, keep_case
from .verdict import Verdict

if TYPE_CHECKING:
    from ..recorder.one_call import Explained, OneCallRecording

EXPLAINED = "explained"
"""The recording of calls that failed, with what they are explained by."""


class CaseFiles:
    """A folder that is there as long as this object; a recording is written when it is needed."""

    def __init__(self, recording: OneCallRecording, contract: str | None) -> None:
        self._recording = recording
        self._demanded = contract
        self._is_written = False

    @functools.cached_property
    def folder(self) -> Path:
        """Made when it is needed: figures alone decide of most calls."""
        folder = scratch.make()
        weakref.finalize(self, _remove, folder, os.getpid())
        return folder

    def judge(self, outputs: Mapping[str, Output], name: str = OUTPUTS) -> list[Verdict]:
        """The judge on outputs, by checkpoint and name, which stay in the folder as `name`."""
        self.require_recording()
        return self._judged(CALL, outputs, name)

    def judge_explained(
        self, outputs: Mapping[str, Output], explained: Sequence[Explained], name: str = OUTPUTS
    ) -> list[Verdict]:
        """The same, with what explains the calls: other ways to round, and planted bugs."""
        shutil.rmtree(self.folder / EXPLAINED, ignore_errors=True)
        self._recording.save(self.folder / EXPLAINED, explained)
        return self._judged(EXPLAINED, outputs, f"{EXPLAINED}-{name}")

    def keep(self, place: Path, outputs: Mapping[str, Mapping[str, Output]]) -> str:
        """Puts recording and outputs, by the names of their files, into another folder; the command
        that judges them there, "" where there is nothing."""
        self.require_recording()
        for name, of in outputs.items():
            (self.folder / name).unlink(missing_ok=True)
            if of:
                save(of, self.folder / name)
        self._is_written = False  # it is moved
        return keep_case(self.folder, place, self._demanded)

    def require_recording(self) -> None:
        """Writes it, once."""
        if not self._is_written:
            self._is_written = self._recording.save(self.folder / CALL)

    def _judged(self, recording: str, outputs: Mapping[str, Output], name: str) -> list[Verdict]:
        save(outputs, self.folder / name)
        contract = self._demanded or "inferred"
        items = judge_library().judge(
            self.folder / recording, self.folder / name, contract=contract, margins=False
        )
        return [Verdict.of(item) for item in items]


def by_key(outputs: Mapping[str, Mapping[str, Output]]) -> dict[str, Output]:
    """From outputs by checkpoint and name to keys of a file."""
    return {f"{id}/{name}": it for id, given in outputs.items() for name, it in given.items()}


def _remove(folder: Path, process: int) -> None:
    """Not by a process that was forked off meanwhile."""
    if os.getpid() == process:
        scratch.drop(folder)
