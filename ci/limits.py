#!/usr/bin/env python3
"""Keeps ci/limits.json: every constant of the judge, with the measurements that it rests on.

usage: ci/limits.py [--base COMMIT]
       ci/limits.py --measure RESULTS...

Without --measure: complains, with exit code 1, where the file and `LimitConstants` in
harness/judge/limits.h differ, where a gate lacks evidence or correct code was beyond its limit, and
where a number is looser than at the merge base with COMMIT (default: main, where there is one)
although the evidence of its gates is not newer or rests on fewer verdicts.
--measure takes the evidence from results of `harness --json`, the numbers from
harness/judge/limits.h.

In the file each contract has the dtypes that it covers (of the run), its constants, each with the
gates whose limit it enters and which direction is looser, and for each gate the evidence: `panel`
verdicts on `devices`, `worst` of statistic / limit among them and `at` which checkpoint, all from
`commands` that began by `date`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FILE = Path("ci/limits.json")
SOURCE = Path("harness/judge/limits.h")
STRUCT = re.compile(r"struct LimitConstants \{\n(.*?)\n\};", re.DOTALL)
CONSTANT = re.compile(r"(?:double|int64_t)\s+(\w+)\s*=\s*([-+.\w]+);")
COMMENT = re.compile(r"//[^\n]*")
LOOSER = ("larger", "smaller")
MEASURE = (
    "measure again: harness --device D --mode both --json RESULTS, then ci/limits.py --measure "
    "RESULTS..."
)


def number(text: str) -> float:
    """A C++ literal, hexadecimal ones included."""
    return float.fromhex(text) if "0x" in text else float(text)


def source_constants(source: Path) -> dict[str, float]:
    """What the binary is compiled with; ValueError for a line that is no `double name = value;`."""
    struct = STRUCT.search(source.read_text())
    if not struct:
        raise ValueError(f"{source}: has no struct LimitConstants")
    body = COMMENT.sub("", struct[1])
    rest = CONSTANT.sub("", body).strip()
    if rest:
        raise ValueError(f"{source}: LimitConstants: cannot read {rest.splitlines()[0].strip()!r}")
    return {name: number(value) for name, value in CONSTANT.findall(body)}


def listed(limits: Json) -> dict[str, tuple[str, Json]]:
    """Every constant's contract and entry by its name."""
    out: dict[str, tuple[str, Json]] = {}
    for contract, entry in limits["contracts"].items():
        for name, constant in entry["constants"].items():
            if name in out:
                raise ValueError(f"{FILE}: {name} is listed under {out[name][0]} and {contract}")
            out[name] = (contract, constant)
    return out


def differences(limits: Json, source: dict[str, float]) -> Iterator[str]:
    """Where file and source are not one."""
    constants = listed(limits)
    for name, (contract, constant) in constants.items():
        if name not in source:
            yield f"{contract}: {name} is no constant of {SOURCE}; delete it"
        elif constant["value"] != source[name]:
            yield (
                f"{contract}: {name} is {constant['value']:g}, in {SOURCE} it is {source[name]:g}; "
                "make them the same"
            )
        if constant["looser"] not in LOOSER:
            yield f"{contract}: {name}: looser is {constant['looser']!r}, expected one of {LOOSER}"
    for name in source.keys() - constants.keys():
        yield f"{name} of {SOURCE} is missing; add it to a contract with its gates and looser"


def unsupported(limits: Json) -> Iterator[str]:
    """Constants without evidence, and evidence against them."""
    for contract, entry in limits["contracts"].items():
        for name, constant in entry["constants"].items():
            for gate in constant["gates"] or ["(none named)"]:
                if gate not in entry["evidence"]:
                    yield f"{contract}: {name}: no evidence of the gate {gate}; {MEASURE}"
        for gate, evidence in entry["evidence"].items():
            if not evidence["panel"] > 0 or not evidence["worst"] <= 1:
                yield (
                    f"{contract}: {gate}: correct code is at {evidence['worst']:g} of the limit "
                    f"({evidence['at']}), in {evidence['panel']} verdicts; the limit is wrong, or "
                    "the code"
                )


def looser(before: Json, now: Json) -> bool:
    """Whether a constant's entry allows more than its earlier one."""
    if before["looser"] == "larger":
        return bool(now["value"] > before["value"])
    return bool(now["value"] < before["value"])


def loosened(base: Json, limits: Json) -> Iterator[str]:
    """Looser numbers that rest on the old evidence, or on less."""
    constants = listed(limits)
    for name, (old_contract, old) in listed(base).items():
        if name not in constants:
            continue  # so it is not in the source either
        contract, new = constants[name]
        if new["looser"] != old["looser"]:
            yield (
                f"{contract}: {name}: looser was {old['looser']}, is {new['looser']}: change that "
                "alone, without a number, and say why"
            )
        if not looser(old, new):
            continue
        for gate in sorted({*old["gates"], *new["gates"]}):
            earlier = base["contracts"][old_contract]["evidence"].get(gate)
            evidence = limits["contracts"][contract]["evidence"].get(gate)
            if earlier is None or evidence is None:
                reason = "it names other gates than before"
            elif evidence["date"] <= earlier["date"]:
                reason = f"its evidence is still that of {earlier['date']}"
            elif evidence["panel"] < earlier["panel"]:
                reason = f"it rests on {evidence['panel']} verdicts, before on {earlier['panel']}"
            else:
                continue
            yield (
                f"{contract}: {name} is {new['value']:g}, was {old['value']:g}: looser, and for "
                f"the gate {gate} {reason}; {MEASURE}, on no fewer devices and recordings"
            )


def git(root: Path, *arguments: str) -> str:
    # In a container the checkout belongs to another user.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def base_limits(root: Path, commit: str | None) -> Json | None:
    """The file as it was where the branch began; None where there was none."""
    if commit is None:
        try:
            git(root, "rev-parse", "--verify", "--quiet", "main^{commit}")
        except ValueError:
            return None
        commit = "main"
    base = git(root, "merge-base", "HEAD", commit).strip()
    if not git(root, "ls-tree", base, "--", str(FILE)):
        return None
    found: Json = json.loads(git(root, "show", f"{base}:{FILE}"))
    return found


def gates(result: Json) -> Iterator[tuple[str, float]]:
    """Every gate of a checkpoint's line that has a tolerance, and statistic / limit."""
    for output in result["outputs"]:
        for gate in output["gates"]:
            limit = float(gate["limit"])
            if limit > 0:
                yield gate["name"], float(gate["statistic"]) / limit


def measure(limits: Json, files: list[Path]) -> None:
    """Replaces the evidence of every contract by what the results say."""
    for entry in limits["contracts"].values():
        entry["evidence"] = {}
    commands, begun = [], ""
    for file in files:
        for line in file.open():
            found = json.loads(line)
            if found["type"] == "run":
                commands.append(" ".join(["harness", *found["command"].split()[1:]]))
                begun = max(begun, found["started"])
            if found["type"] != "checkpoint" or found["status"] in ("unsupported", "blind"):
                continue
            for entry in limits["contracts"].values():
                if found["dtype"] in entry["dtypes"]:
                    add_to(entry, found)
    for entry in limits["contracts"].values():
        wanted = {gate for constant in entry["constants"].values() for gate in constant["gates"]}
        entry["evidence"] = {gate: entry["evidence"].get(gate) for gate in sorted(wanted)}
        for gate, evidence in entry["evidence"].items():
            if evidence is None:
                raise ValueError(f"no verdict of {', '.join(entry['dtypes'])} has the gate {gate}")
            evidence["worst"] = float(f"{evidence['worst']:.4g}")
            evidence["devices"].sort()
            evidence["date"] = begun
    limits["commands"] = commands


def add_to(entry: Json, result: Json) -> None:
    """Counts a checkpoint's gates."""
    for gate, share in gates(result):
        empty = {"panel": 0, "worst": -math.inf, "at": "", "devices": []}
        evidence = entry["evidence"].setdefault(gate, empty)
        evidence["panel"] += 1
        if result["device"] not in evidence["devices"]:
            evidence["devices"].append(result["device"])
        if not share <= evidence["worst"]:
            evidence["worst"] = share
            evidence["at"] = " ".join(
                [result["device"], result["dtype"], result["recording"], result["checkpoint"]]
            )


def take_values(limits: Json, source: dict[str, float]) -> None:
    for name, (_, constant) in listed(limits).items():
        if name in source:
            constant["value"] = source[name]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", metavar="COMMIT", help="compare with its merge base")
    parser.add_argument("--measure", nargs="+", type=Path, metavar="RESULTS")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args()
    try:
        source = source_constants(options.root / SOURCE)
        file = options.root / FILE
        limits = json.loads(file.read_text())
        if options.measure:
            measure(limits, options.measure)
            take_values(limits, source)
            file.write_text(json.dumps(limits, indent=1) + "\n")
        complaints = [*differences(limits, source), *unsupported(limits)]
        base = base_limits(options.root, options.base)
        if base is not None:
            complaints += loosened(base, limits)
    except (OSError, ValueError) as error:
        print(f"limits: {error}", file=sys.stderr)
        return 3
    except (KeyError, TypeError) as error:
        print(f"limits: {FILE} or results: lacks {error}, see ci/limits.py --help", file=sys.stderr)
        return 3
    for complaint in complaints:
        print(f"{FILE}: {complaint}")
    if not complaints:
        count = len(listed(limits))
        print(f"{count} constants as in {SOURCE}, none looser without new evidence")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
