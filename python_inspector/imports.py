"""What transformers imports and no recording needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_UNNEEDED = {
    "is_sklearn_available": "transformers.generation.candidate_generator",
    "is_scipy_available": "transformers.loss.loss_for_object_detection",
    "is_torchvision_available": "transformers.image_utils",
}
"""How transformers asks for a package, and the module that imports it first: for assisted
generation, losses of object detection, images."""


@contextmanager
def only_what_is_needed() -> Iterator[None]:
    """Inside, transformers is imported as if scikit-learn, SciPy and torchvision were not there.

    Where they are, half of the time that loading a model class takes goes into importing them and
    what they need, for functions that no recording calls. Modules that are imported inside go
    without them for good: this is for a process that only records. Does nothing where they are
    imported already.
    """
    from transformers import utils

    with ExitStack() as back:
        for name, user in _UNNEEDED.items():
            if user not in sys.modules:
                back.callback(setattr, utils, name, getattr(utils, name))
                setattr(utils, name, _no)
        yield


def _no() -> bool:
    return False
