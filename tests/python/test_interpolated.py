"""torch's interpolations, whose insides other modes see than the run that is recorded."""

from __future__ import annotations

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.trace.rounded import rounded_run
from python_inspector.trace.simulation import Normals, Simulation

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def nearest(
    x: torch.Tensor, size: tuple[int, ...], *, half: float = 0.0, shift: int = 0
) -> torch.Tensor:
    """Axis by axis; `half` of a step later as nearest-exact, `shift` elements away."""
    for axis, made in enumerate(size, 2):
        n = x.shape[axis]
        step = torch.tensor(n / made)  # float32, as torch has it
        at = ((torch.arange(made) + half) * step).floor().long() + shift
        x = x.index_select(axis, at.clamp(0, n - 1))
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "size"), [((2, 3, 8), (13,)), ((2, 3, 9, 11), (15, 7))])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_element_is_copied(
    dtype: torch.dtype, shape: tuple[int, ...], size: tuple[int, ...], mode: str
) -> None:
    x, half = normal(*shape).to(dtype), 0.5 if mode == "nearest-exact" else 0.0

    def like(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, size=size, mode=mode)

    check(like, like=like, inputs=x)
    check(lambda x: nearest(x, size, half=half), like=like, inputs=x)
    wrong(lambda x: nearest(x, size, half=half, shift=1), like, x)
    wrong(lambda x: nearest(x, size, half=0.5 - half), like, x)
    last = torch.arange(size[-1]) == size[-1] - 1
    wrong(lambda x: torch.where(last, like(x).roll(3, -1), like(x)), like, x)
    simulation = Simulation(3, Normals("copies"))
    with rounded_run(simulation):
        y = like(x)
    assert simulation.stacks.of(y) is None  # nothing is computed: every kernel has the same


def between(n: int, made: int, *, corners: bool) -> torch.Tensor:
    """[made, n]: the share of each element in one of the result."""
    at = torch.arange(made, dtype=torch.float32)
    place = at * ((n - 1) / (made - 1)) if corners else ((at + 0.5) * (n / made) - 0.5).clamp_min(0)
    low = place.floor().long().clamp(max=n - 1)
    shares = torch.zeros(made, n)
    shares[torch.arange(made), low] = 1 - (place - low)
    shares[torch.arange(made), (low + 1).clamp(max=n - 1)] += place - low
    return shares


def bilinear(x: torch.Tensor, size: tuple[int, int], *, corners: bool) -> torch.Tensor:
    rows, columns = (
        between(n, made, corners=corners) for n, made in zip(x.shape[2:], size, strict=True)
    )
    return (rows @ x.float() @ columns.T).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("corners", [False, True])
def test_places_between_elements_are_rounded(
    dtype: torch.dtype, mean: float, *, corners: bool
) -> None:
    x, size = (normal(1, 2, 60, 50) + mean).to(dtype), (33, 87)

    def like(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, size=size, mode="bilinear", align_corners=corners)

    check(like, like=like, inputs=x)
    check(lambda x: bilinear(x, size, corners=corners), like=like, inputs=x)
    wrong(lambda x: bilinear(x, size, corners=not corners), like, x)
    wrong(lambda x: bilinear(x.roll(1, -1), size, corners=corners), like, x)


@pytest.mark.parametrize("mode", ["linear", "bicubic", "trilinear"])
def test_every_kind_of_interpolation(mode: str) -> None:
    axes = {"linear": 1, "bicubic": 2, "trilinear": 3}[mode]
    x = normal(1, 2, *[37, 7, 6][:axes])

    def like(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=1.7, mode=mode)

    def other(x: torch.Tensor) -> torch.Tensor:
        """The same from the other end, where places are other numbers."""
        axes = list(range(2, x.ndim))
        size = like(x).shape[2:]
        return functional.interpolate(x.flip(axes), size=size, mode=mode).flip(axes)

    def sized(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, size=like(x).shape[2:], mode=mode)

    check(like, like=like, inputs=x)
    check(other, like=sized, inputs=x)
    wrong(sized, like, x)  # other places: 1.7 of them are no whole number


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_positions_that_are_an_operand(mode: str, padding: str) -> None:
    """Each is off by roundings of itself, which float64 has not; a shift of them is a fault."""
    x, grid = normal(2, 3, 5, 20), normal(2, 13, 10, 2, seed=1)

    def like(x: torch.Tensor, grid: torch.Tensor, by: float = 0.0) -> torch.Tensor:
        options = {"mode": mode, "padding_mode": padding, "align_corners": False}
        return functional.grid_sample(x, grid + by, **options)

    def kernel(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return like(x.double(), grid.double()).float()

    assert check(like, like, (x, grid), explain=False).passed
    assert check(kernel, like, (x, grid), explain=False).passed
    wrong(lambda x, grid: like(x, grid, 1e-4), like, (x, grid), explain=False)
