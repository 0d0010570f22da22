"""The table of engines: python -m tests.engines.table [--dtype D] [--engine REGEX] [--block B].

A row for each engine, block, kernel and dtype: verdicts on the right kernel, its error over the
reference's, the roundings that it follows, and how many of the mistakes made with it are seen.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from python_inspector.native import find_harness

from . import engines, measured, wrong_rounding
from .kernel import Kernel


def selected(options: argparse.Namespace) -> Iterator[tuple[str, Kernel]]:
    """Kernels to judge, by dtype so that recordings stay in memory."""
    for dtype in options.dtype:
        for module in options.module:
            kernels, _ = engines.load(module)
            for kernel in kernels:
                if re.search(options.engine, f"{kernel.engine} {kernel.name}") and (
                    not options.block or kernel.block in options.block
                ):
                    yield dtype, kernel


def row(dtype: str, kernel: Kernel, *, with_mistakes: bool = True) -> dict[str, Any]:
    """What is known of a kernel."""
    recordings, unsupported = measured.right(kernel, dtype)
    counts = list(recordings.values())
    out: dict[str, Any] = {
        "dtype": dtype, "engine": kernel.engine, "block": kernel.block, "kernel": kernel.name,
        "passed": sum(each.passed for each in counts),
        "judged": sum(each.judged for each in counts),
        "unsupported": dict(unsupported),
    }  # fmt: skip
    if not counts:
        return out
    accurate = [each for each in counts if each.as_accurate and kernel.of_inputs]
    diagnoses = sum((each.diagnoses for each in counts), Counter[str]())
    out |= {
        "ratio": measured.error_ratio([pair for each in counts for pair in each.errors]),
        "as_accurate": sum(each.judged for each in accurate),
        "as_accurate_passed": sum(each.passed for each in accurate),
        "rounds": measured.best_candidates(kernel, dtype)[:2] if dtype != "f32" else [],
        "reason": next(iter(sum((each.reasons for each in counts), Counter[str]())), ""),
        "diagnosis": diagnoses.most_common(1)[0][0] if diagnoses else "",
        "recordings": {
            name: [each.passed, each.judged, each.ratio] for name, each in recordings.items()
        },
    }
    if with_mistakes:
        out["mistakes"] = {
            name: {
                "failed": count.failed,
                "judged": count.judged,
                "bit_equal": count.bit_equal,
                "diagnosis": count.diagnoses.most_common(1),
            }
            for name, count in measured.mistakes(kernel, dtype).items()
        }
    return out


def line(found: dict[str, Any]) -> str:
    """One row as text."""
    words = [f"{found[key]:{width}}" for key, width in _COLUMNS]
    if not found["judged"]:
        reasons = "; ".join(found["unsupported"]) or "no case"
        return " ".join([*words, f"unsupported: {reasons[:120]}"])
    words.append(f"{found['passed']:4}/{found['judged']:<4}")
    words.append(f"{found['as_accurate_passed']:4}/{found['as_accurate']:<4}")
    words.append(f"{found['ratio']:6.2f}")
    rounds = [f"{name} {100 * share:.3f} %" for share, name in found["rounds"][:1]]
    words.append(f"{'; '.join(rounds):58}")
    for name, count in found.get("mistakes", {}).items():
        words.append(f"{name} {count['failed']}/{count['judged']}")
    if found["passed"] < found["judged"]:
        words.append(f"\n      {found['reason'][:150]}\n      {found['diagnosis'][:200]}")
    return " ".join(words).rstrip()


_COLUMNS = (("dtype", "4"), ("engine", "13"), ("block", "14"), ("kernel", "32"))
HEADER = (
    "pass: checkpoints that pass. accurate: the same of recordings in which the kernel is no less "
    "accurate than the reference, which have to pass. E: its error over the reference's. Then the "
    "rounding points that its bits follow and the share of bits that differ from them; for each "
    "mistake how many of the checkpoints fail in which it changes a bit.\n"
    "type engine        block          kernel                             pass  accurate     E"
)


def summary(rows: list[dict[str, Any]]) -> str:
    """By dtype: checkpoints and kernels that have to pass, mistakes that have to be seen."""
    lines = ["", "type  have to pass      kernels    mistakes seen  wrong kernels seen"]
    for dtype in dict.fromkeys(found["dtype"] for found in rows):
        mine = [found for found in rows if found["dtype"] == dtype and found["judged"]]
        right = [found for found in mine if found["engine"] != "wrong"]
        wrong = [found for found in mine if found["engine"] == "wrong"]
        passed, accurate = (
            sum(found[key] for found in right) for key in ("as_accurate_passed", "as_accurate")
        )
        clean = [
            found["as_accurate_passed"] == found["as_accurate"]
            for found in right
            if found["as_accurate"]
        ]
        tried = [
            count["failed"]
            for found in right
            for count in found.get("mistakes", {}).values()
            if count["judged"]
        ]
        lines.append(
            f"{dtype:4} {passed:6} of {accurate:<6} {sum(clean):4} of {len(clean):<4} "
            f"{sum(map(bool, tried)):6} of {len(tried):<6} "
            f"{sum(found['passed'] < found['judged'] for found in wrong):6} of {len(wrong)}"
        )
    return "\n".join(lines)


def printed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for found in rows:
        kept.append(found)
        print(line(found), flush=True)
    return kept


def measured_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for dtype, kernel in selected(options):
        yield row(dtype, kernel, with_mistakes=not options.no_mistakes)
    if options.engine and not re.search(options.engine, "wrong"):
        return
    for dtype in options.dtype:
        for kernel in wrong_rounding.kernels():
            if not options.block or kernel.block in options.block:
                yield row(dtype, kernel, with_mistakes=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", action="append", choices=("f32", "f16", "bf16"))
    parser.add_argument("--engine", default="", metavar="REGEX", help="of engine and kernel")
    parser.add_argument("--module", action="append", choices=[*engines.MODULES], help="faster")
    parser.add_argument("--block", action="append")
    parser.add_argument("--no-mistakes", action="store_true", help="right kernels alone: faster")
    parser.add_argument("--rows", type=Path, nargs="+", metavar="FILE", help="saved by --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also as JSON lines")
    options = parser.parse_args()
    if options.rows:
        saved = [text for path in options.rows for text in path.read_text().splitlines()]
        print(HEADER)
        print(summary(printed(map(json.loads, saved))))
        return 0
    options.dtype = options.dtype or ["f32", "f16", "bf16"]
    options.module = options.module or [*engines.MODULES]
    print(f"harness: {find_harness()}\nengines: {engines.versions()}")
    for module in options.module:
        if reason := engines.load(module)[1]:
            print(f"absent: {reason}")
    print(HEADER)
    rows = printed(measured_rows(options))
    print(summary(rows))
    if options.out:
        options.out.write_text("".join(json.dumps(found) + "\n" for found in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
