"""Operations that torch runs as one and that are sums, roundings and factorisations inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.api.verdict import WrongError
from python_inspector.trace import norm_model
from python_inspector.trace.norm_model import rounds_statistics
from python_inspector.trace.reruns import rerun_anything
from python_inspector.trace.rounded import rounded_run
from python_inspector.trace.simulation import Normals, Simulation

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Callable[..., torch.Tensor]


# Normalisations.


def two_passes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def updates(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Welford's."""
    mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        off = x[..., i : i + 1] - mean
        mean = mean + off / (i + 1)
        squares = squares + off * (x[..., i : i + 1] - mean)
    return mean, squares / x.shape[-1]


def centred(x: torch.Tensor, moments: Kernel, eps: float = 1e-5) -> torch.Tensor:
    mean, variance = moments(x.float())
    return ((x.float() - mean) * torch.rsqrt(variance + eps)).to(x.dtype)


def scaled(x: torch.Tensor, moments: Kernel, eps: float = 1e-5) -> torch.Tensor:
    """x rstd - mean rstd."""
    mean, variance = moments(x.float())
    rstd = torch.rsqrt(variance + eps)
    return (x.float() * rstd + -mean * rstd).to(x.dtype)


NORMS: dict[str, tuple[Kernel, Any]] = {
    "group": (lambda x: functional.group_norm(x, 4), lambda x: x.reshape(2, 4, -1)),
    "instance": (functional.instance_norm, lambda x: x),
    "layer": (lambda x: functional.layer_norm(x, x.shape[-1:]), lambda x: x),
    "batch": (
        lambda x: functional.batch_norm(x, None, None, training=True),
        lambda x: x.movedim(1, 0).reshape(8, -1),
    ),
}


def as_norm(name: str, grouped: torch.Tensor) -> torch.Tensor:
    if name == "batch":
        return grouped.reshape(8, 2, 32).movedim(0, 1)
    return grouped.reshape(2, 8, 32)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mean", [0.0, 100.0, "a row of 1e4"])
def test_a_norm_of_any_form_is_right_whatever_the_mean(
    name: str, dtype: torch.dtype, mean: Any
) -> None:
    like, view = NORMS[name]
    x = normal(2, 8, 32)
    if isinstance(mean, float):
        x = x + mean
    else:
        x[1, 3] += 1e4
    x = x.to(dtype)
    check(like, like=like, inputs=x)
    for form in (centred, scaled):
        for moments in (two_passes, updates):
            check(lambda x, f=form, m=moments: as_norm(name, f(view(x), m)), like=like, inputs=x)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_wrong_norm_is_wrong_whatever_the_mean(name: str, mean: float) -> None:
    like, view = NORMS[name]
    x = normal(2, 8, 32) + mean

    def unbiased(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean(-1, keepdim=True), x.var(-1, keepdim=True)

    wrong(lambda x: as_norm(name, centred(view(x), unbiased)), like, x)
    wrong(lambda x: as_norm(name, centred(view(x), two_passes, eps=1e-3)), like, x)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_of_denormals(name: str, dtype: torch.dtype) -> None:
    """Their mean is rounded to a step that rstd, 316 here, makes large."""
    like, view = NORMS[name]
    x = (normal(2, 8, 32).double() * (1e-41 if dtype == torch.float32 else 1e-39)).to(dtype)
    check(like, like=like, inputs=x)
    for form in (centred, scaled):
        for moments in (two_passes, updates):
            check(lambda x, f=form, m=moments: as_norm(name, f(view(x), m)), like=like, inputs=x)
    wrong(lambda x: as_norm(name, centred(view(x), two_passes, eps=2e-5)), like, x)
    wrong(
        lambda x: as_norm(name, centred(view(x), lambda x: (0, x.var(-1, keepdim=True)))), like, x
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_of_all_may_round_every_factor(dtype: torch.dtype) -> None:
    """torch does so on a CPU: a partial product that is a denormal has few bits."""
    factors = normal(12, 24)
    factors = factors.sign() + factors / 16
    factors[1, :4], factors[1, 4:8] = 0.05, 20.0
    x = factors.to(dtype)

    def like(x: torch.Tensor) -> torch.Tensor:
        return x.prod(-1)

    check(like, like=like, inputs=x)
    if dtype == torch.bfloat16:  # float16 overflows the other way round
        check(lambda x: x.flip(-1).prod(-1), like=like, inputs=x)
    check(lambda x: x.float().prod(-1).to(x.dtype), like=like, inputs=x)
    wrong(lambda x: x[:, :-1].prod(-1), like, x)
    wrong(lambda x: like(x) * 1.25, like, x)


@pytest.mark.host  # a GPU multiplies in float32
def test_a_product_that_is_lost_on_the_way_proves_nothing() -> None:
    x = torch.ones(3, 24, dtype=torch.float16)
    x[1, :12], x[1, 12:] = 0.1, 10.0
    assert x.prod(-1)[1] == 0
    for kernel in (lambda x: x.prod(-1), lambda x: x.float().prod(-1).half()):
        assert wrong(kernel, lambda x: x.prod(-1), x).status == "blind"


def test_statistics_that_torch_returns_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group norm on a GPU rounds them before it uses them: then that is the rounded model."""
    x = (normal(2, 8, 32) + 100).bfloat16()
    mean, variance = two_passes(x.reshape(2, 4, -1).float())
    rstd = torch.rsqrt(variance + 1e-5)
    ways = {
        True: (x.reshape(2, 4, -1).float() - mean.bfloat16()) * rstd.bfloat16(),
        False: (x.reshape(2, 4, -1).float() - mean) * rstd,
    }
    assert not rounds_statistics(torch.device("cpu"))
    for rounds, y in ways.items():
        monkeypatch.setattr(norm_model, "rounds_statistics", lambda _, r=rounds: r)
        with rounded_run(Simulation(0, Normals("group"))):
            m = functional.group_norm(x, 4)
        assert (m != y.bfloat16().reshape(x.shape)).sum() < 4


def test_weights_and_running_statistics_of_a_norm() -> None:
    weight, bias, x = 1 + normal(8) / 4, normal(8, seed=6), normal(3, 8, 5, 4) + 100
    running = (100 + normal(8) / 9, 1 + normal(8).square())

    def group(x: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x, 2, weight, bias)

    def batch(x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, *running, weight, bias)

    def of_group(x: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
        y = centred(x.reshape(3, 2, -1), two_passes).reshape(x.shape)
        return y * weight[:, None, None] + bias[:, None, None]

    def of_batch(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
        factor = weight / (running[1] + eps).sqrt()
        return x * factor[:, None, None] + (bias - running[0] * factor)[:, None, None]

    check(of_group, like=group, inputs=x)
    wrong(lambda x: of_group(x, weight.roll(1)), group, x)
    check(of_batch, like=batch, inputs=x)
    wrong(lambda x: of_batch(x, 1e-2), batch, x)


# Transforms and factorisations.


def matrix(n: int, device: torch.device) -> torch.Tensor:
    i = torch.arange(n, device=device)
    turns = torch.outer(i, i) % n * (-2 * torch.pi / n)
    return torch.polar(torch.ones_like(turns), turns)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_transform_may_be_any_sum(mean: float) -> None:
    x = normal(4, 24) + mean

    def real(spectrum: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(spectrum)

    def product(x: torch.Tensor) -> torch.Tensor:
        return real(x.to(torch.complex64) @ matrix(24, x.device))

    check(product, like=lambda x: real(torch.fft.fft(x)), inputs=x)
    check(lambda x: product(x)[:, :13], like=lambda x: real(torch.fft.rfft(x)), inputs=x)
    wrong(lambda x: product(x) * 1.0001, lambda x: real(torch.fft.fft(x)), x)
    wrong(lambda x: product(x.clone().index_fill_(1, torch.tensor(23, device=x.device), 0)),
          lambda x: real(torch.fft.fft(x)), x)  # fmt: skip
    spectrum = torch.fft.rfft(x)
    check(
        lambda pairs: torch.fft.irfft(torch.view_as_complex(pairs).to(torch.complex128)).float(),
        like=lambda pairs: torch.fft.irfft(torch.view_as_complex(pairs)),
        inputs=real(spectrum),
    )


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_determinant_is_as_good_as_its_matrix(mean: float) -> None:
    x = normal(8, 8) + mean
    for like in (torch.linalg.det, lambda x: torch.linalg.slogdet(x).logabsdet):
        check(lambda x, like=like: like(x.mT), like=like, inputs=x)
        wrong(lambda x, like=like: like(x) * 1.01, like, x)


def test_eigenvalues_of_unequal_rows() -> None:
    x = normal(8, 16)
    x[3] += 1e4
    square = x @ x.mT
    check(torch.linalg.eigvalsh, like=torch.linalg.eigvalsh, inputs=square)
    check(torch.linalg.svdvals, like=torch.linalg.svdvals, inputs=x)
    wrong(lambda x: torch.linalg.svdvals(x) * 1.001, torch.linalg.svdvals, x)


def test_flags_of_a_factorisation_are_no_choices() -> None:
    """What is chosen later is followed all the same."""

    def like(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.inv(x), x[torch.linalg.det(x[None]).argmax(-1)] * x.argmax(-1)

    x = normal(6, 6)

    def outputs(result: Any, twin: Any) -> Any:
        return {str(i): (t, ("token", "channel")) for i, t in enumerate(result)}

    reruns, texts = rerun_anything(
        outputs, lambda run: run(like, (x,), {}), "inv#0", lambda *a: None, runs=2, repeat=False
    )
    assert texts == []
    assert reruns.simulated is not None


# Functions and small compositions.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_functions_that_compute_with_their_argument(dtype: torch.dtype) -> None:
    def sinc(x: torch.Tensor) -> torch.Tensor:
        turned = x.float() * torch.pi
        return torch.where(x == 0, 1.0, turned.sin() / turned).to(dtype)

    def bounded(x: torch.Tensor) -> torch.Tensor:
        return torch.logit(x, eps=1e-3)

    x = (100 * normal(6, 16)).to(dtype)
    check(sinc, like=torch.sinc, inputs=x)
    wrong(lambda x: sinc(x) * 1.02, torch.sinc, x)
    if dtype != torch.bfloat16:  # where 1 - eps is 1
        check(bounded, like=bounded, inputs=x.sigmoid())
        wrong(lambda x: torch.logit(x, eps=2e-3), bounded, x.sigmoid())
    near = 1.4616 + 1e-3 * normal(6, 16)  # where digamma is 0
    check(torch.digamma, like=torch.digamma, inputs=near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cross_product_of_nearly_parallel_vectors(dtype: torch.dtype) -> None:
    a, b = ((10 + normal(16, 3, seed=s)).to(dtype) for s in (1, 2))

    def cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x, y, z = a.double().unbind(-1)
        u, v, w = b.double().unbind(-1)
        return torch.stack([y * w - z * v, z * u - x * w, x * v - y * u], -1).to(dtype)

    check(torch.linalg.cross, like=torch.linalg.cross, inputs=(a, b))
    check(cross, like=torch.linalg.cross, inputs=(a, b))
    wrong(lambda a, b: cross(b, a), torch.linalg.cross, (a, b))


# Siblings of these.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_that_is_rounded_to_the_storage(dtype: torch.dtype) -> None:
    x = (100 * normal(6, 16)).to(dtype)
    for like in (lambda x: torch.fmod(x, 0.7), lambda x: (x * 1.0) % 0.7):
        check(like, like=like, inputs=x)
        wrong(lambda x: torch.fmod(x.float(), 0.7).to(dtype), like, x)


def test_layers_that_torch_fuses_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 20, batch_first=True).eval()
    lstm = torch.nn.LSTM(16, 6, batch_first=True).eval()
    gru = torch.nn.GRU(16, 6, batch_first=True).eval()
    for module in (layer, lstm, gru):
        module.requires_grad_(False)
        check(module, like=module, inputs=normal(2, 5, 16))
        if module is not layer:
            with monkeypatch.context() as patch:
                patch.setattr(torch.backends.cudnn, "allow_tf32", False)
                wrong(lambda x, m=module: (m(x)[0] * 1.001, m(x)[1]), module, normal(2, 5, 16))
    wrong(lambda x: layer(x) * 1.001, layer, normal(2, 5, 16))
    check(layer, like=layer, inputs=normal(2, 5, 16) + 100)


def test_what_changes_its_shape_in_place() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.quantile(x.tanh(), 0.3, -1).unsqueeze_(0).transpose_(0, 1)

    check(like, like=like, inputs=normal(6, 9))
    check(like, like=like, inputs=(normal(6, 9) * 2).round())
    wrong(lambda x: like(x) * 1.001, like, normal(6, 9))


def test_norms_and_distances_of_tiny_values_prove_nothing() -> None:
    x = normal(6, 9) * 1e-30
    for like in (lambda x: x.norm(dim=-1), lambda x: functional.pdist(x)):
        with pytest.raises(WrongError) as raised:
            check(like, like=like, inputs=x)
        assert raised.value.verdict.status == "blind"


def test_one_element_with_a_stride() -> None:
    x = normal(1, 1)
    check(lambda x: x * 2, like=lambda x: torch.view_as_complex(
        torch.stack([x * 2, x], -1)).real, inputs=x)  # fmt: skip


def test_a_kernel_that_returns_one_strided_element() -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft2(torch.fft.fft2(x)).real

    assert like(normal(1, 1)).stride(-1) == 2
    check(like, like=like, inputs=normal(1, 1))
