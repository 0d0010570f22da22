"""Verdicts in flashinfer-bench's words: as Traces of JSON, and as an Evaluator of its benchmark."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..api.checking import check
from ..api.hardware import device_name
from ..api.verdict import Verdict, WrongError
from ..errors import RecordError
from .flashinfer import allocated, normalised, reference
from .flashinfer_inputs import JSON
from .stated import NARROW

NOT_JUDGED = ("blind", "unsupported")
"""Verdicts that its statuses have no word for: no trace is written."""
OTHER = re.compile(r"output is (\S+) (\[.*?\]), expected (\S+) (\[.*?\])")
"""What a verdict says of another dtype or shape."""


def status_of(verdict: Verdict) -> str:
    """The benchmark's status of a candidate."""
    if verdict.status == "pass":
        return "PASSED"
    if verdict.status == "error":
        return "TIMEOUT" if "did not end within" in verdict.reason else "RUNTIME_ERROR"
    if other := OTHER.search(verdict.reason):
        return "INCORRECT_SHAPE" if other[2] != other[4] else "INCORRECT_DTYPE"
    if NARROW.search(verdict.reason):
        return "INCORRECT_DTYPE"
    return "INCORRECT_NUMERICAL"


def trace(definition: JSON, workload: JSON, solution: JSON, verdict: Verdict) -> dict[str, Any]:
    """A Trace. Its schema demands a performance of what passed: zeros, nothing was timed."""
    status = status_of(verdict)
    numerical = status in ("PASSED", "INCORRECT_NUMERICAL")
    zeros = {"latency_ms": 0.0, "reference_latency_ms": 0.0, "speedup_factor": 0.0}
    hardware = device_name("cuda" if torch.cuda.is_available() else "cpu")
    evaluation = {
        "status": status,
        "environment": {"hardware": hardware, "libs": {"torch": torch.__version__}},
        "timestamp": datetime.now(UTC).isoformat(),
        "log": f"not timed; {verdict}",
        "correctness": _errors(verdict) if numerical else None,
        "performance": zeros if status == "PASSED" else None,
    }
    return {
        "definition": definition["name"],
        "workload": dict(workload),
        "solution": solution["name"],
        "evaluation": evaluation,
    }


def _errors(verdict: Verdict) -> dict[str, Any]:
    """The largest error relative to its element's scale; the largest one alone is not measured."""
    outputs = verdict.figures.get("outputs", ())
    largest = [float(it["statistics"]["M_E"]) for it in outputs if it.get("statistics")]
    return {
        "max_absolute_error": "NaN",
        "max_relative_error": str(max(largest, default=math.nan)),
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
            stated = definition.model_dump(mode="json")
            passed = sol_runnable.metadata.destination_passing_style
            verdicts = [_checked(stated, sol_runnable, passed, args, device) for args in inputs]
            wrong = [it for it in verdicts if not it.passed]
            shown = (wrong or verdicts)[0]
            status = EvaluationStatus(status_of(shown))
            numerical = status.value in ("PASSED", "INCORRECT_NUMERICAL")
            correctness = Correctness(**_errors(shown)) if numerical else None
            if not wrong:
                return correctness, None
            return correctness, make_eval(
                status=status, device=device, log_path=log_path, correctness=correctness,
                extra_msg=str(shown),
            )  # fmt: skip

    return PlumblineEvaluator


def _checked(definition: JSON, kernel: Any, passed: bool, args: Any, device: str) -> Verdict:
    def function(*given: Any) -> Any:
        if not passed:
            return normalised(definition, kernel(*given))
        made = allocated(definition, given, device)
        kernel(*given, *made)
        return made

    with TemporaryDirectory(prefix="plumbline-") as folder:
        file = Path(folder) / "reference.py"
        file.write_text(definition["reference"])
        try:
            return check(function, reference(definition, file), tuple(args))
        except WrongError as error:
            return error.verdict
        except RecordError as error:
            return Verdict(definition["name"], "module", "unsupported", str(error), {})


def append(
    file: Path, files: tuple[JSON, Sequence[JSON], JSON], said: Mapping[str, Verdict]
) -> None:
    """Adds a line for each verdict on definition, workloads and solution that the benchmark has a
    word for."""
    definition, workloads, solution = files
    with file.open("a") as lines:
        for workload in workloads:
            verdict = said.get(str(workload["uuid"]))
            if verdict is not None and verdict.status not in NOT_JUDGED:
                lines.write(json.dumps(trace(definition, workload, solution, verdict)) + "\n")
