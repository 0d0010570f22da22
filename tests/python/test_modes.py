"""What the oracle's runs switch off: a recorder's own mode, autocast, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from python_inspector.trace.dispatch import WatchingMode, plain_arithmetic, unwatched
from python_inspector.trace.replay import run_lifted


class Counting(WatchingMode):
    """Counts the functions that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.asked += 1
        return func(*args, **(kwargs or {}))


class Other(TorchFunctionMode):
    """A user's mode, which doubles what is added."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.add else result


def test_a_rerun_does_not_ask_the_recorders_mode() -> None:
    x = torch.ones(3)
    with Counting() as mode:
        run_lifted(lambda t: torch.add(t, t), (x,), {})
        before = mode.asked
        torch.add(x, x)
        assert mode.asked == before + 1
    with mode, unwatched():
        torch.add(x, x)
    assert mode.asked == before + 1


def test_a_mode_of_somebody_else_stays() -> None:
    x = torch.ones(3)
    with Counting() as mode, Other(), unwatched():
        assert torch.equal(torch.add(x, x), 4 * x)
        assert mode.asked > 0
    with unwatched():  # without any
        assert torch.equal(torch.add(x, x), 2 * x)


def test_the_recorders_mode_is_back_after_an_error() -> None:
    x = torch.ones(3)
    with Counting() as mode:
        with pytest.raises(ValueError, match="no"), unwatched():
            raise ValueError("no")
        torch.add(x, x)
        assert mode.asked == 1


@pytest.mark.parametrize("on", [True, False])
def test_arithmetic_without_autocast_gradients_and_inference_tensors(on: bool) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
        with plain_arithmetic():
            product = torch.ones(4, 4) @ weight
            assert product.dtype == torch.float32
            assert not product.requires_grad and not product.is_inference()
        assert torch.is_autocast_enabled("cpu") == on
