"""draw() for Hypothesis, which chooses seeds, kinds and sizes, and makes failures smaller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import needs
from .drawing import Draw
from .extents import preferred, ranges_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

MOST_SEED = 1 << 16


def operands(*draws: Draw) -> SearchStrategy[tuple[Any, ...]]:
    """Tuples of one tensor per draw(), for inputs= of check(). Each has a kind of its own draw's,
    and a name has one size in all of them: the smallest first, then those next to tiles, then any.
    """
    needs.require("plumbline.strategies", "hypothesis")
    from hypothesis import strategies as st

    ranges = ranges_of({name for it in draws for name in it.names}, (it.ranges for it in draws))
    sizes = st.fixed_dictionaries(
        {
            name: st.one_of(st.sampled_from(preferred(it)), st.integers(*it))
            for name, it in ranges.items()
        }
    )
    kinds = st.tuples(*(st.sampled_from(it.kinds) for it in draws))

    def made(seed: int, sizes: dict[str, int], kinds: tuple[str, ...]) -> tuple[Any, ...]:
        pairs = enumerate(zip(draws, kinds, strict=True))
        return tuple(it.tensor(seed, salt, sizes, kind) for salt, (it, kind) in pairs)

    return st.builds(made, st.integers(0, MOST_SEED), sizes, kinds)
