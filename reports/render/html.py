"""The report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from importlib import resources

import jinja2
from markupsafe import Markup

from ..results import NO_FAILURES, STATUSES, Checkpoint, Run
from . import figures, overview, words
from .delta import Delta
from .depth import depths
from .page_data import page_data

_FOLDER = resources.files(__package__) / "templates"

MOST_CHAINS = 12  # figures of chains; failing ones first
MOST_MAPS = 12  # figures of failures, the simplest block first
MOST_GROUPS = 40  # of failures and of losses


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_FOLDER / name).read_text("utf-8")),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals.update(derivation=words.derivation, overall=words.overall)
    environment.filters.update(
        figure=words.figure, times=words.times, percent=words.percent, plural=words.plural,
        status=lambda status: status.replace("_", " "),
    )  # fmt: skip
    return environment


def _hash(script: str) -> str:
    """What the page's policy knows its only script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _chains(runs: list[Run]) -> tuple[list[Markup], int]:
    """Figures of the chains that come closest to their limits, and how many there are in all."""
    chains = [c for c in overview.checkpoints(runs) if c.chain and len(c.chain.rows) > 1]
    chains.sort(key=lambda c: (not c.failed, -c.ratio))
    drawn = [figures.depth(chain) for chain in chains[:MOST_CHAINS]]
    return [svg for svg in drawn if svg], len(chains)


def _maps(groups: list[overview.FailureGroup]) -> dict[int, list[Markup]]:
    """Heat strips and heat maps of the groups' examples, by the group's number."""
    found: dict[int, list[Markup]] = {}
    for number, group in enumerate(groups[:MOST_MAPS]):
        title = " ".join(group.place)
        for where in (output.where for output in group.worst.outputs if output.where):
            drawn = (figures.error_maps(where, title), figures.error_picture(where, title))
            if svgs := [svg for svg in drawn if svg]:
                found[number] = svgs
                break
    return found


def _recordings(all_of_them: list[Checkpoint]) -> dict[str, str]:
    return dict(sorted({c.recording: c.golden_sha256 for c in all_of_them}.items()))


def html(runs: list[Run], delta: Delta | None) -> str:
    """The page; `delta`: against a baseline, if there is one."""
    everything = overview.checkpoints(runs)
    counts = Counter(checkpoint.status for checkpoint in everything)
    failures = overview.failure_groups(runs)
    losses = overview.loss_groups(delta) if delta else []
    index, chunks = page_data(runs, delta)
    chains, chain_count = _chains(runs)
    deep, deep_count = depths(everything)
    environment = _environment()
    script = (_FOLDER / "report.js").read_text("utf-8")
    return environment.get_template("report.html").render(
        style=Markup((_FOLDER / "report.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=_hash(script),
        runs=runs,
        notices=[run.notice for run in runs if run.notice],
        counts=[(status, counts[status]) for status in reversed(STATUSES) if counts[status]],
        failed=sum(count for status, count in counts.items() if status not in NO_FAILURES),
        total=len(everything),
        failures=failures[:MOST_GROUPS],
        more_failures=max(0, len(failures) - MOST_GROUPS),
        maps=_maps(failures),
        delta=delta,
        losses=losses[:MOST_GROUPS],
        lost=sum(len(group.changes) for group in losses),
        matrix=overview.matrix(runs, delta),
        tolerances=overview.tolerances(runs),
        blind_spots=overview.blind_spots(runs),
        comparisons=[c for run in runs for c in run.comparisons],
        errors=figures.error_against_limit(runs),
        worst_gates=figures.worst_gates(runs),
        octaves=figures.octaves(runs),
        chains=chains,
        chain_count=chain_count,
        deep=deep,
        deep_count=deep_count,
        recordings=_recordings(everything),
        index=index,
        chunks=chunks,
    )
