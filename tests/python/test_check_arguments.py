"""check(): what a kernel does to its arguments, and whether it does the same twice."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from checked import normal, wrong
from transformers import DynamicCache

from python_inspector import check, prepare
from python_inspector.errors import UsageError

pytestmark = pytest.mark.usefixtures("harness")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_kernel_that_destroys_its_input_fails() -> None:
    x = normal(4, 16)
    before = x.clone()

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        x[1, 3] = 9
        return out

    verdict = wrong(kernel, double, x)
    assert verdict.status == "fail"
    assert "argument x was changed, which `like` leaves as it was: 1 of 64 elements" in str(verdict)
    assert "the first at [1, 3]" in verdict.reason
    assert torch.equal(x, before)
    wrong(lambda x: x.mul_(2), double, x)


def test_a_kernel_in_place_is_judged_by_what_it_changed() -> None:
    def like(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(x.tanh() + y)

    x, y = normal(4, 16), normal(4, 16, seed=6)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> None:
        x.tanh_().add_(y)

    check(kernel, like=like, inputs=(x, y))
    assert "x_after" in wrong(lambda x, y: None, like, (x, y)).reason
    wrong(lambda x, y: x.tanh_().add_(y).mul_(1.001), like, (x, y))
    assert "argument y was changed" in wrong(lambda x, y: y.mul_(2), like, (x, y)).reason
    check(lambda x: x.mul_(2), like=lambda x: x.mul_(2), inputs=x)
    wrong(double, lambda x: x.mul_(2), x)  # does not do it in place


@pytest.mark.host
def test_numpy_kernels_change_their_arrays_too() -> None:
    x = normal(4, 16)

    def kernel(x: np.ndarray) -> np.ndarray:
        out = x * 2
        x += 1
        return out

    assert "argument x was changed" in wrong(kernel, double, x, arrays="numpy").reason
    bf16 = wrong(kernel, double, x.bfloat16(), arrays="numpy")  # its arrays are wider copies
    assert "argument x was replaced" in bf16.reason

    def in_place(x: np.ndarray) -> None:
        x *= 2

    for dtype in (torch.float32, torch.bfloat16):
        check(in_place, like=lambda x: x.mul_(2), inputs=x.to(dtype), arrays="numpy")


def test_weights_are_arguments_too() -> None:
    linear = torch.nn.Linear(16, 8, bias=False)

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = x @ weight.T
        weight.zero_()
        return out

    weights = {"weight": normal(8, 16)}
    verdict = wrong(kernel, linear, normal(4, 16), weights=weights)
    assert "argument weight was changed" in verdict.reason


def test_what_is_written_beside_a_view_is_seen() -> None:
    buffer = normal(8, 16)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        torch.as_strided(x, (8, 16), (16, 1), 0)[5].zero_()
        return out

    verdict = wrong(kernel, double, buffer[:4])
    assert "64 bytes outside argument x were written" in verdict.reason

    def pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return kernel(x) + y

    inputs = (buffer[:4], buffer[4:])
    assert "argument y was changed" in wrong(pair, lambda x, y: x * 2 + y, inputs).reason
    columns = buffer[:, :4]

    def tail(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        torch.as_strided(x, (8,), (16,), 4).zero_()  # one column too many
        return out

    assert "outside argument x were written" in wrong(tail, double, columns).reason


def test_views_of_one_storage_stay_that() -> None:
    buffer = normal(8, 16)

    def like(pool: torch.Tensor, slot: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        slot.copy_(x)
        return pool.sum(-1)

    inputs = {"pool": buffer, "slot": buffer[2:4], "x": normal(2, 16, seed=6)}

    def kernel(pool: torch.Tensor, slot: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pool[2:4] = x
        return pool.sum(-1)

    def other(pool: torch.Tensor, slot: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pool[3:5] = x
        return like(pool.clone(), slot.clone(), x)

    check(kernel, like=like, inputs=inputs)
    wrong(other, like, inputs)


def test_results_may_alias_arguments_that_stay_as_they_are() -> None:
    x = normal(4, 16)
    check(lambda x: x.view(-1), like=lambda x: x.reshape(-1).clone(), inputs=x)
    check(lambda x: x.clone().view(-1), like=lambda x: x.view(-1), inputs=x)


def attend(x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    keys, values = cache.update(x, x * 2, 0)
    return keys.sum(-2) + values.sum(-2)


@pytest.mark.parametrize("filled", [0, 2])
def test_a_cache_has_to_be_updated_in_its_slot(filled: int) -> None:
    cache = DynamicCache()
    for layer in range(filled):
        cache.update(normal(1, 2, 3, 4), normal(1, 2, 3, 4, seed=7), layer)
    x = normal(1, 2, 1, 4, seed=8)

    def kernel(layer: int | None, scale: float = 2) -> Any:
        def call(x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
            out = attend(x, copy.deepcopy(cache))
            if layer is not None:
                for _ in range(layer + 1 - len(cache.layers)):
                    cache.update(x[..., :0, :], x[..., :0, :], len(cache.layers))
                cache.update(x, x * scale, layer)
            return out

        return call

    check(kernel(0), like=attend, inputs=(x, cache))
    assert "cache.0.values_after" in wrong(kernel(0, 2.01), attend, (x, cache)).reason
    assert "cache.0.keys" in wrong(kernel(None), attend, (x, cache)).reason
    slot = wrong(kernel(1), attend, (x, cache)).reason
    assert "argument cache.1.keys was" in slot
    assert (cache.get_seq_length() if filled else 0) == (3 if filled else 0)


def test_plain_values_in_arguments_count() -> None:
    def like(x: torch.Tensor, state: dict[str, int]) -> torch.Tensor:
        state["seen"] += len(x)
        return x * 2

    def kernel(x: torch.Tensor, state: dict[str, int]) -> torch.Tensor:
        return x * 2

    state = {"seen": 3}
    check(like, like=like, inputs=(normal(4, 16), state))
    verdict = wrong(kernel, like, (normal(4, 16), state))
    assert "argument state.seen is 3 after the call, after `like` 7" in verdict.reason
    assert state == {"seen": 3}


def test_objects_and_modules_are_looked_into() -> None:
    x, linear = normal(4, 16), torch.nn.Linear(16, 16)
    state = types.SimpleNamespace(inner=types.SimpleNamespace(x=x.clone()), y=x.clone())

    def kernel(state: Any, linear: torch.nn.Module) -> torch.Tensor:
        out: torch.Tensor = linear(state.y)
        state.inner.x.zero_()
        linear.weight.data.zero_()
        return out

    def like(state: Any, linear: torch.nn.Module) -> torch.Tensor:
        return linear(state.y)

    check(like, like=like, inputs=(state, linear))
    reason = wrong(kernel, like, (state, linear)).reason
    assert "argument state.inner.x was changed" in reason
    assert "weight of the argument Linear was changed" in reason
    assert bool(state.inner.x.any()) and bool(linear.weight.any())


class Once:
    """Right on its first call alone."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.tanh() * (1 if self.calls == 1 else 0)


def test_a_kernel_is_called_twice() -> None:
    x = normal(4, 16)
    verdict = wrong(Once(), torch.tanh, x)
    assert verdict.status == "nondeterministic"
    assert "64 of 64 elements, the first at [0, 0]" in verdict.reason
    assert "in a later call" in verdict.reason
    once = Once()
    assert check(once, like=torch.tanh, inputs=x, repeat=1).passed
    assert once.calls == 1
    with pytest.raises(ValueError, match="repeat is 0"):
        check(once, like=torch.tanh, inputs=x, repeat=0)


def test_bits_may_differ_where_those_of_like_do() -> None:
    """A sum whose order is another one each time, within its limits."""
    x = normal(4, 64)
    orders = [torch.arange(64), torch.arange(63, -1, -1)]

    def summed() -> Any:
        made: list[int] = []

        def call(x: torch.Tensor) -> torch.Tensor:
            made.append(1)
            return functools.reduce(torch.add, x[:, orders[len(made) % 2]].unbind(-1))

        return call

    like = summed()
    verdict = wrong(summed(), lambda x: x.sum(-1), x)
    assert verdict.status == "nondeterministic"
    check(summed(), like=like, inputs=x)

    def late() -> Any:
        made: list[int] = []
        kernel = summed()

        def call(x: torch.Tensor) -> torch.Tensor:
            made.append(1)
            return kernel(x) * (1 + 0.01 * (len(made) - 1))

        return call

    assert "in a later call" in wrong(late(), summed(), x).reason


def test_copies_cost_the_inputs_once_more() -> None:
    """The first call's copies are gone when the second's are made."""
    kept: list[Any] = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        assert all(ref() is None for ref in kept)
        kept.append(weakref.ref(x))
        return x * 2

    check(kernel, like=double, inputs=normal(4, 16))
    assert len(kept) == 2


def test_what_a_kernel_may_change_is_declared() -> None:
    def like(x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        return x * 2

    def kernel(x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        scratch.copy_(x)
        return scratch * 2

    inputs = normal(4, 16), normal(4, 16, seed=6)
    assert "argument scratch was changed" in wrong(kernel, like, inputs).reason
    assert "argument scratch was changed" in wrong(kernel, like, inputs, mutates=["x"]).reason
    verdict = check(kernel, like, inputs, mutates=["scratch"])
    assert verdict.not_judged == ("scratch_after",)
    assert prepare(like, inputs, mutates=["scratch"])(kernel).passed


def test_what_is_declared_is_judged_where_like_changes_it() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    x = normal(4, 16)
    check(lambda x: x.mul_(2), like, x, mutates=["x"])
    assert wrong(double, like, x, mutates=["x"]).status == "fail"
    assert check(double, like, x, mutates=[]).not_judged == ("x_after",)
    assert "argument x was changed" in wrong(lambda x: x.mul_(2), like, x, mutates=[]).reason


def test_names_of_what_may_be_changed() -> None:
    with pytest.raises(UsageError, match=r"mutates: no argument is called 'y'; tensors are: x"):
        check(double, double, normal(3), mutates=["y"])
