"""Verdicts in flashinfer-bench's words: as Traces of JSON, and as an Evaluator of its benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..api.hardware import device_name
from ..api.verdict import Verdict
from .files import JSON
from .flashinfer import judged_call, reference
from .stated import Stated, checked, largest_error, trouble_of

NOT_JUDGED = ("blind", "unsupported")
"""Verdicts that its statuses have no word for: no trace is written."""
STATUSES = {
    "": "PASSED", "timeout": "TIMEOUT", "error": "RUNTIME_ERROR", "shape": "INCORRECT_SHAPE",
    "dtype": "INCORRECT_DTYPE", "numbers": "INCORRECT_NUMERICAL",
}  # fmt: skip


def append(
    file: Path, files: tuple[JSON, Sequence[JSON], JSON], said: Mapping[str, Verdict]
) -> None:
    """Adds a Trace for each verdict that the benchmark has a word for. Its schema demands a
    performance of what passed: zeros, nothing was timed."""
    definition, workloads, solution = files
    zeros = {"latency_ms": 0.0, "reference_latency_ms": 0.0, "speedup_factor": 0.0}
    hardware = device_name("cuda" if torch.cuda.is_available() else "cpu")
    with file.open("a") as lines:
        for workload in workloads:
            verdict = said.get(str(workload["uuid"]))
            if verdict is None or verdict.status in NOT_JUDGED:
                continue
            evaluation = {
                "status": STATUSES[trouble_of(verdict)],
                "environment": {"hardware": hardware, "libs": {"torch": torch.__version__}},
                "timestamp": datetime.now(UTC).isoformat(),
                "log": f"not timed; {verdict}",
                "correctness": _correctness(verdict),
                "performance": zeros if verdict.passed else None,
            }
            trace = {"definition": definition["name"], "workload": dict(workload)}
            trace |= {"solution": solution["name"], "evaluation": evaluation}
            lines.write(json.dumps(trace) + "\n")


def _correctness(verdict: Verdict) -> dict[str, Any] | None:
    """The largest error relative to its element's scale; the largest one alone is not measured."""
    if trouble_of(verdict) not in ("", "numbers"):
        return None
    return {
        "max_absolute_error": "NaN",
        "max_relative_error": str(largest_error(verdict)),
        "extra": {"plumbline": verdict.to_json()},
    }


def evaluator() -> Any:
    """A subclass of flashinfer-bench's DefaultEvaluator for its list of evaluators: its worker
    builds and times a solution, check() judges it there. It is not sealed: that process holds the
    reference's outputs."""
    from flashinfer_bench.bench.evaluators import DefaultEvaluator
    from flashinfer_bench.bench.utils import make_eval
    from flashinfer_bench.data import Correctness, EvaluationStatus

    class PlumblineEvaluator(DefaultEvaluator):
        @classmethod
        def check_correctness(
            cls, definition: Any, sol_runnable: Any, inputs: Any, ref_outputs: Any, cfg: Any,
            log_path: str, device: str,
        ) -> Any:  # fmt: skip
            named = definition.model_dump(mode="json")
            passed = sol_runnable.metadata.destination_passing_style
            kernel = judged_call(sol_runnable, named, passed)
            ref_outputs = ref_outputs if passed else [()] * len(inputs)
            with TemporaryDirectory(prefix="plumbline-") as scratch:
                stated = Stated(reference(named, Path(scratch)), {})
                verdicts = [
                    checked(kernel, stated, (*args, *map(torch.zeros_like, filled)), salt=0)
                    for args, filled in zip(inputs, ref_outputs, strict=True)
                ]
            shown = next((it for it in verdicts if not it.passed), verdicts[0])
            errors = _correctness(shown)
            correctness = None if errors is None else Correctness(**errors)
            if shown.passed:
                return correctness, None
            return correctness, make_eval(
                status=EvaluationStatus(STATUSES[trouble_of(shown)]), device=device,
                log_path=log_path, correctness=correctness, extra_msg=str(shown),
            )  # fmt: skip

    return PlumblineEvaluator
