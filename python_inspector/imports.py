"""What transformers imports and no recording needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_USER = "transformers.generation.candidate_generator"


@contextmanager
def without_sklearn() -> Iterator[None]:
    """Inside, transformers is imported as if scikit-learn were not there.

    Where it is, a quarter of the time that loading a model class takes goes into importing it and
    what it needs, for one function of assisted generation, which no recording calls. Does nothing
    where that is imported already.
    """
    if _USER in sys.modules:
        yield
        return
    from transformers import utils

    asked = utils.is_sklearn_available
    utils.is_sklearn_available = lambda: False
    try:
        yield
    finally:
        utils.is_sklearn_available = asked
