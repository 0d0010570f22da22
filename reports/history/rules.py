"""When a checkpoint that changed got worse: the rules for one pair of checkpoints.

Every rule is a question about an older and a newer output; asked the other way round it says
whether the newer one got better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from .figures import Checkpoint, Output
from .significance import mann_whitney

GROWTH = 1.5  # of E_T and of every M_A
GAIN_GROWTH = 2.0  # of |gain|, which
GAIN_SHARE = 0.1  # also has to exceed this share of E_T
TAIL_GROWTH = 2  # of the number of elements above any octave,
TAIL_MORE = 10  # and so many more
DRIFT_OCTAVES = 0.25  # of the mean log2 of the scaled error
RUNS = 9  # of each side, where repeated runs differ
CHANCE = 0.001  # of the Mann-Whitney test there
# Octave counts: z < 2^-4, then one per power of two.
_FIRST_OCTAVE = -4


def grown(old: float, new: float, factor: float = GROWTH) -> bool:
    """Whether an error grew by more than the factor; what is no number is worse than any."""
    return not math.isnan(old) and not new <= factor * old


def change(old: float, new: float) -> str:
    """ "2.1e-7 to 4.2e-7 (2x)"."""
    ratio = f" ({new / old:.3g}x)" if old > 0 and math.isfinite(new / old) else ""
    return f"{old:.3g} to {new:.3g}{ratio}"


def figures(output: Output) -> dict[str, float]:
    """The errors that the rule of growth is asked about, by name."""
    return {"E_T": output.error, **output.families}


def growth(old: Output, new: Output) -> Iterator[str]:
    """E_T and every M_A."""
    before, now = figures(old), figures(new)
    for name in before:
        if name in now and grown(before[name], now[name]):
            yield f"{name} {change(before[name], now[name])}, allowed {GROWTH}x"


def gain(old: Output, new: Output) -> Iterator[str]:
    """The mean gain, once it is a share of the error worth naming."""
    before, now = abs(old.gain), abs(new.gain)
    if grown(before, now, GAIN_GROWTH) and not now <= GAIN_SHARE * new.error:
        yield f"gain {change(before, now)}, allowed {GAIN_GROWTH:g}x"


def tail(old: Output, new: Output) -> Iterator[str]:
    """Elements above z = 2^k; the first k is named."""
    if old.octaves is None or new.octaves is None:
        return
    for index in range(1, max(len(old.octaves), len(new.octaves))):
        before, now = sum(old.octaves[index:]), sum(new.octaves[index:])
        if now > TAIL_GROWTH * before + TAIL_MORE:
            k = index - 1 + _FIRST_OCTAVE
            allowed = TAIL_GROWTH * before + TAIL_MORE
            yield f"elements above 2^{k} roundings {before} to {now}, allowed {allowed}"
            return


def drift(old: Output, new: Output) -> Iterator[str]:
    """The mean log2 of the scaled error."""
    if not old.octaves or not new.octaves:
        return
    before, now = mean_octave(old.octaves), mean_octave(new.octaves)
    if now - before > DRIFT_OCTAVES:
        yield f"mean log2 z {before:+.2f} to {now:+.2f}, allowed {DRIFT_OCTAVES:+}"


def mean_octave(octaves: Sequence[int]) -> float:
    """The mean log2 z of a histogram, each element in its octave's middle."""
    n = sum(octaves)
    middle = _FIRST_OCTAVE - 0.5
    return sum(count * (index + middle) for index, count in enumerate(octaves)) / n if n else 0.0


Rule = Callable[[Output, Output], Iterator[str]]
WORSE: tuple[Rule, ...] = (growth, gain, tail)
DRIFT: tuple[Rule, ...] = (drift,)


def broken(rules: Sequence[Rule], old: Checkpoint, new: Checkpoint) -> list[str]:
    """What the rules say of the outputs that both have, each said of its output by name."""
    said = []
    for name in sorted(old.outputs.keys() & new.outputs.keys()):
        for rule in rules:
            said += [f"{name}: {words}" for words in rule(old.outputs[name], new.outputs[name])]
    return said


def improvements(old: Checkpoint, new: Checkpoint) -> list[str]:
    """What got better, of what the rules look at."""
    said = []
    for name in sorted(old.outputs.keys() & new.outputs.keys()):
        before, now = old.outputs[name], new.outputs[name]
        errors, smaller = figures(before), figures(now)
        said += [
            f"{name}: {figure} {change(errors[figure], smaller[figure])}"
            for figure in errors
            if figure in smaller and grown(smaller[figure], errors[figure])
        ]
        if any(gain(now, before)):
            said.append(f"{name}: gain {change(abs(before.gain), abs(now.gain))}")
        if any((*tail(now, before), *drift(now, before))):
            octaves = mean_octave(before.octaves or ()), mean_octave(now.octaves or ())
            said.append(f"{name}: mean log2 z {octaves[0]:+.2f} to {octaves[1]:+.2f}")
    return said


def grown_over_runs(old: Sequence[Checkpoint], new: Sequence[Checkpoint]) -> list[str]:
    """The rule for what differs from run to run: medians, and more than chance."""
    said = []
    for name in sorted(old[0].outputs.keys() & new[0].outputs.keys()):
        before = [figures(run.outputs[name]) for run in old]
        now = [figures(run.outputs[name]) for run in new]
        for figure in filter(now[0].__contains__, before[0]):
            low, high = [run[figure] for run in before], [run[figure] for run in now]
            medians = statistics.median(low), statistics.median(high)
            chance = mann_whitney(low, high)
            if grown(*medians) and chance < CHANCE:
                said.append(
                    f"{name}: {figure}, medians of {len(low)} and {len(high)} runs, "
                    f"{change(*medians)}, allowed {GROWTH}x (chance {chance:.1g})"
                )
    return said
