"""Whole models of engines: right where nothing is known against them, and else for that reason.

An engine that is not installed is skipped by name.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import deviations, whole
from .whole_runs import RUNS, folder

LOADED = {name: whole.load(name) for name in whole.ENGINES}


def adapter(engine: str) -> Any:
    module, reason = LOADED[engine]
    if module is None:
        pytest.skip(reason)
    return module


def taken(engine: str, run: str, dtype: str) -> Any:
    made, reason = whole.built(adapter(engine), folder(run, dtype))
    if made is None:
        pytest.skip(reason)
    return made


def described(found: dict[str, Any]) -> str:
    return f"{found['status']}: {found['reason']}; {found.get('details')}"


@pytest.mark.parametrize("engine", whole.ENGINES)
@pytest.mark.parametrize(("run", "dtype"), RUNS)
def test_verdicts_are_the_known_ones(engine: str, run: str, dtype: str) -> None:
    made = taken(engine, run, dtype)
    for way in made.ways:
        found = whole.judged(made, way, folder(run, dtype))
        known = deviations.of(engine, run, dtype, way)
        expected = "pass" if known is None else "fail"
        assert found["status"] == expected, f"{way} {described(found)}"


REPAIRS = [
    (deviation, run, dtype)
    for deviation in deviations.DEVIATIONS
    if deviation.repair is not None
    for run in deviation.runs
    for dtype in deviation.dtypes
]


@pytest.mark.parametrize(("deviation", "run", "dtype"), REPAIRS)
def test_a_repaired_engine_passes(deviation: deviations.Deviation, run: str, dtype: str) -> None:
    """So that the failure is of what the finding says, and of nothing else."""
    adapter(deviation.engine)
    assert deviation.repair is not None
    made = deviation.repair(folder(run, dtype))
    for way in deviation.ways:
        found = whole.judged(made, way, folder(run, dtype))
        assert found["status"] == "pass", f"{way} {described(found)}"


def test_a_table_of_float16_explains_llama_cpp() -> None:
    """It is compiled, so transformers takes the table: 20 times nearer than without it."""
    import numpy as np
    import torch

    from python_inspector.engines.steps import RecordedRun
    from python_inspector.engines.weights import transformers_model

    recording = folder("gemma2-wide", "f32")
    engine = taken("llama_cpp", "gemma2-wide", "f32")
    ids = torch.from_numpy(RecordedRun(recording).all_ids([0, 1, 2, 3]))
    theirs = np.concatenate([engine.ways["prefill"](row[None])["logits"] for row in ids])
    table = deviations.gelu_of_float16(recording).ways["prefill"](ids).numpy()
    with torch.no_grad():
        exact = transformers_model(recording)(ids).logits.numpy()
    assert np.linalg.norm(theirs - table) < 0.1 * np.linalg.norm(theirs - exact)
