"""check(): how results are paired with those of `like`, and results of every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.errors import RecordError

pytestmark = pytest.mark.usefixtures("harness")


def pair(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"q": x.tanh(), "k": x.exp()}


def test_names_count_and_their_order_does_not() -> None:
    x = normal(4, 16)
    check(lambda x: {"k": x.exp(), "q": x.tanh()}, like=pair, inputs=x)
    swapped = wrong(lambda x: {"q": x.exp(), "k": x.tanh()}, pair, x)
    assert "out.q: " in swapped.reason or "out.k: " in swapped.reason
    other = wrong(lambda x: {"q": x.tanh(), "keys": x.exp()}, pair, x)
    assert "returned keys at out, which `like` does not; it returns q, k" in other.reason
    assert check(lambda x: {"k": x.exp()}, like=pair, inputs=x).not_judged == ("out.q",)
    verdict = wrong(lambda x: (x.tanh(), x.exp()), pair, x)
    assert "the function returned a tuple of 2, `like` a dict with q, k" in verdict.reason


def test_structure_counts() -> None:
    def like(x: torch.Tensor) -> Any:
        return (x.tanh(), x.exp()), x.abs()

    x = normal(4, 16)
    check(lambda x: [[x.tanh(), x.exp()], x.abs()], like=like, inputs=x)
    flat = wrong(lambda x: (x.tanh(), x.exp(), x.abs()), like, x)
    assert "returned 3 results, `like` 2: out.0.0, out.0.1, out.1" in flat.reason
    turned = wrong(lambda x: (x.tanh(), (x.exp(), x.abs())), like, x)
    assert "out.0: the function returned an array, `like` a tuple of 2" in turned.reason
    assert "out: " in wrong(lambda x: {"a": x, "b": x}, like, x).reason


def test_none_is_an_absent_result_in_its_place() -> None:
    def like(x: torch.Tensor) -> Any:
        return x.tanh(), None, x.exp()

    x = normal(4, 16)
    check(lambda x: (x.tanh(), None, x.exp()), like=like, inputs=x)
    moved = wrong(lambda x: (x.tanh(), x.exp()), like, x)
    assert "out.1: the function returned an array, `like` None" in moved.reason
    wrong(lambda x: (None, x.tanh(), x.exp()), like, x)
    verdict = check(lambda x: (x.tanh(), None, None), like=like, inputs=x)
    assert verdict.not_judged == ("out.2",)
    nothing = wrong(lambda x: None, torch.tanh, x)
    assert "the function returned None, and nothing of what `like` returns: out" in nothing.reason


def test_a_model_output_may_come_back_as_a_tuple() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    def like(x: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(x.tanh(), attentions=(x.exp(),))  # type: ignore[arg-type]

    x = normal(4, 16)
    check(lambda x: (x.tanh(), (x.exp(),)), like=like, inputs=x)
    verdict = check(torch.tanh, like=like, inputs=x)
    assert verdict.not_judged == ("out.attentions.0",)


def test_plain_results_have_to_be_equal() -> None:
    x = normal(4, 16)
    check(lambda x: (x.tanh(), 4), like=lambda x: (x.tanh(), len(x)), inputs=x)
    verdict = wrong(lambda x: (x.tanh(), 5), lambda x: (x.tanh(), len(x)), x)
    assert "out.1 is 5, `like` returns 4" in verdict.reason


def test_empty_results_are_equal() -> None:
    x = normal(4, 16)
    check(lambda x: (x[:0], x * 2), like=lambda x: (x[:0], x * 2), inputs=x)
    verdict = wrong(lambda x: (x[:1], x * 2), lambda x: (x[:0], x * 2), x)
    assert "out.0 is [1, 16], `like` returns the empty [0, 16]" in verdict.reason
    assert check(lambda x: x[:0], like=lambda x: x[4:], inputs=x).passed
    assert check(torch.tanh, like=torch.tanh, inputs=x[:0]).passed
    assert "out is [0, 8]" in wrong(lambda x: x[:0, :8], lambda x: x[:0], x).reason
    assert "argument x was changed" in wrong(lambda x: x.mul_(2)[:0], lambda x: x[:0], x).reason


def test_complex_results_by_their_parts() -> None:
    z = torch.complex(normal(4, 16), normal(4, 16, seed=6))
    check(lambda z: z * z, like=lambda z: z * z, inputs=z)
    check(lambda z: z.cpu().numpy() ** 2, like=lambda z: z * z, inputs=z)
    check(lambda z: z * z, like=lambda z: z * z, inputs=z.conj())
    wrong(lambda z: (z * z).conj(), lambda z: z * z, z)
    wrong(lambda z: z * z * 1.001, lambda z: z * z, z)
    x = normal(4, 32)
    check(torch.fft.rfft, like=lambda x: torch.fft.rfft(x), inputs=x)
    wrong(lambda x: torch.fft.rfft(x).conj(), lambda x: torch.fft.rfft(x), x)


NUMBERS = [
    torch.int8, torch.int16, torch.uint8, torch.int32, torch.int64, torch.bool,
    torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
def test_results_of_every_dtype(dtype: torch.dtype) -> None:
    x = (normal(4, 16) * 3).abs()
    if dtype == torch.bool:
        x = x - 2

    def like(x: torch.Tensor) -> torch.Tensor:
        return (x > 0) if dtype == torch.bool else x.to(dtype)

    def off(x: torch.Tensor) -> torch.Tensor:
        out = like(x).float()
        out[2, 3] = 1 - out[2, 3] if dtype == torch.bool else out[2, 3] + 1
        return out.to(dtype)

    check(lambda x: like(x), like=like, inputs=x)
    wrong(off, like, x)


def test_whole_numbers_of_another_width_are_judged() -> None:
    x = normal(8, 16)
    check(lambda x: x > 0, like=lambda x: (x > 0).to(torch.uint8), inputs=x)
    check(lambda x: (x > 0).to(torch.uint8), like=lambda x: x > 0, inputs=x)
    check(lambda x: x.argmax(-1).int(), like=lambda x: x.argmax(-1), inputs=x)
    check(lambda x: x.argmax(-1), like=lambda x: x.argmax(-1).int(), inputs=x)
    check(lambda x: x.argmax(-1).to(torch.int16), like=lambda x: x.argmax(-1), inputs=x)
    verdict = wrong(lambda x: (x > 0).to(torch.uint8) * 255, lambda x: x > 0, x)
    assert "255" in verdict.reason
    verdict = wrong(lambda x: x.argmax(-1) + 2**40, lambda x: x.argmax(-1).int(), x)
    assert "which i32 cannot hold" in verdict.reason
    wrong(lambda x: x.argmax(-1).int() + 1, lambda x: x.argmax(-1), x)


def test_whole_numbers_are_compared_as_such() -> None:
    big = torch.tensor([2**53, 2**53 + 3, 2**62, -(2**60), 5, 9])
    check(lambda i: i * 1, like=lambda i: i * 1, inputs=big)
    verdict = wrong(lambda i: i + torch.tensor([1, 0, 0, 0, 0, 0]), lambda i: i * 1, big)
    assert "1 of 6 elements differ from the expected result" in verdict.reason
    assert "5 of 6" in wrong(lambda i: i + (i != 5).long(), lambda i: i * 1, big).reason


# Modules in train mode.


def test_a_module_is_called_in_its_own_mode() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if self.training else 3)

    module, x = Scaled(), normal(4, 16)
    check(lambda x: x * 2, like=module, inputs=x)
    assert module.training
    check(lambda x: x * 3, like=module.eval(), inputs=x)
    still = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(0.0))
    check(lambda x: still(x), like=still, inputs=x)
    assert all(m.training for m in still.modules())


@pytest.mark.parametrize(
    "part, does",
    [
        (torch.nn.Dropout(0.5), "Dropout (0) draws random numbers"),
        (torch.nn.BatchNorm1d(16), "BatchNorm1d (0) changes its running statistics"),
        (torch.nn.RReLU(), "RReLU (0) draws random numbers"),
        (torch.nn.TransformerEncoderLayer(16, 2, 32), "draws random numbers"),
        (torch.nn.LSTM(16, 8, 2, dropout=0.1), "LSTM (0) draws random numbers"),
    ],
)
def test_what_depends_on_train_mode_is_refused(part: torch.nn.Module, does: str) -> None:
    module = torch.nn.Sequential(part).to(normal(1).device)
    for like in (module, lambda x: module(x)):
        with pytest.raises(RecordError) as raised:
            check(torch.tanh, like=like, inputs=normal(4, 16))
        assert does in str(raised.value)
        assert "call .eval() on it first" in str(raised.value)
    module.eval()
    if not isinstance(part, (torch.nn.LSTM, torch.nn.RReLU)):
        check(lambda x: module(x), like=module, inputs=normal(4, 16))


def test_random_whole_numbers_are_refused() -> None:
    with pytest.raises(RecordError, match="it draws random numbers"):
        check(torch.tanh, like=lambda x: torch.randint(0, 99, x.shape), inputs=normal(4, 16))


def test_without_its_mode_a_random_module_is_told_of_it() -> None:
    class Dropping(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, self.training)

    with pytest.raises(RecordError, match=r"it is in train mode: call \.eval\(\) first"):
        check(torch.tanh, like=Dropping(), inputs=normal(4, 64))
