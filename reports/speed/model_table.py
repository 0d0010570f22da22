"""A Markdown table of whole models: `harness bench --model` next to transformers."""

from __future__ import annotations

from ..json_lines import Line

KEY = ("model", "tokens", "dtype", "device")
TITLES = (
    "model", "prompt", "dtype", "prefill tokens/s", "rival", "speedup", "decode tokens/s", "rival",
    "speedup", "gaps",
)  # fmt: skip


def rows(lines: list[Line]) -> list[list[str]]:
    """One for each model of ours; no figure for one that is wrong."""
    return [
        _row(ours, [r for r in lines if r.get("type") == "rival_model" and _same(r, ours)])
        for ours in lines
        if ours.get("type") == "model_bench"
    ]


def _same(one: Line, other: Line) -> bool:
    return all(one[name] == other[name] for name in KEY)


def _row(ours: Line, rivals: list[Line]) -> list[str]:
    head = [ours["model"], str(ours["tokens"]), ours["dtype"]]
    if ours["status"] != "pass":
        return [*head, ours["status"], "", "", "", "", "", ours["reason"][:80].replace("|", "/")]
    cells = []
    for figure in ("prefill", "decode"):
        measured = [r for r in rivals if r[f"{figure}_ratio"] is not None]
        best = min(measured, key=lambda r: float(r[f"{figure}_ratio"]), default=None)
        beside = [best["way"], f"{best[f'{figure}_ratio']:.2f}x"] if best else ["none", ""]
        cells += [f"{ours[f'{figure}_tokens_per_s']:,.0f}", *beside]
    gaps = "; ".join(f"{r['way']}: {r['gap'][:60]}" for r in rivals if r["gap"])
    return [*head, *cells, gaps.replace("|", "/")]
