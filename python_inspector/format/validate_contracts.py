"""A recording's contracts: words that are known, simulated kernels that show what they allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .contract_words import INSIDE, in_order


def contract_findings(recording: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the table of contracts."""
    for name, contract in recording["contracts"].items():
        words = contract.get("inside", [])
        known = in_order(words)
        if words != known:
            wrong = next((word for word in words if word not in INSIDE), None)
            what = f"inside are {words}, in order {known}" if wrong is None else f"inside: {wrong}"
            yield f"contracts.{name}: {what}; known are {', '.join(INSIDE)}"


def inside_findings(
    where: str, checkpoint: Mapping[str, Any], contracts: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with the contract of a checkpoint."""
    contract = contracts.get(checkpoint["contract"])
    if contract is None:
        yield f"{where}: contract {checkpoint['contract']} is not among contracts"
    elif "inside" in contract and "trace" not in checkpoint:
        words = ", ".join(contract["inside"])
        yield f"{where}: contract has {words}, which no simulated kernels show: there is no trace"
