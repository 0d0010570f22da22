"""check() and prepare() of tensors as people have them: views, compiled code, parts of a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor

from python_inspector import (
    RecordError,
    UsageError,
    WrongError,
    check,
    invariant,
    prepare,
    record,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

KERNELS = f"{__file__.removesuffix('test_check_tensors.py')}sealed_kernels.py"


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def with_another_eps(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * weight


def as_if_contiguous(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Reads the elements that follow the first one in memory, as kernels without strides do."""
    storage = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    following = storage.repeat(x.numel())[x.storage_offset() :][: x.numel()]
    return norm(following.view(x.shape), weight)


def writes_next_to_it(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = norm(x, weight)
    torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())[0] += 1
    return out


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "rows and columns of a larger one": lambda: normal(20, 80)[3:11, 8:40],
    "every other one": lambda: normal(16, 64)[::2, ::2],
    "transposed": lambda: normal(32, 8).T,
    "expanded": lambda: normal(8, 1).expand(8, 32),
    "overlapping": lambda: normal(200).as_strided((8, 32), (3, 1), 11),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    inputs = (VIEWS[name](), normal(32, seed=6))
    judge = prepare(norm, inputs)
    assert check(norm, like=norm, inputs=inputs).passed
    assert judge(norm).passed
    for kernel in (with_another_eps, as_if_contiguous):
        assert wrong(kernel, norm, inputs).status == "fail"


def test_views_of_one_storage_reach_a_sealed_kernel() -> None:
    base = normal(40, 80)
    inputs = (base[3:11, 8:72:2], base[1, 8:40])
    assert check(f"{KERNELS}:right", like=norm, inputs=inputs, sealed=True).passed


def test_what_a_view_leaves_out_is_not_to_be_written() -> None:
    base = normal(20, 80)
    verdict = wrong(writes_next_to_it, norm, (base[3:11, 8:40], normal(32, seed=6)))
    assert "bytes outside argument x were written" in verdict.reason


@pytest.mark.parametrize(
    "backend", [pytest.param("inductor", marks=pytest.mark.nightly), "aot_eager"]
)
def test_compiled_kernels(backend: str) -> None:
    inputs = (normal(8, 32), normal(32, seed=6))
    compiled = torch.compile(norm, backend=backend)
    assert prepare(norm, inputs)(compiled).passed
    assert check(compiled, like=norm, inputs=inputs).passed
    assert wrong(compiled, with_another_eps, inputs).status == "fail"


def test_a_compiled_reference_is_what_it_was_compiled_from() -> None:
    inputs = (normal(8, 32), normal(32, seed=6))
    like = torch.compile(norm, backend="aot_eager")
    assert check(norm, like=like, inputs=inputs).passed
    assert wrong(with_another_eps, like, inputs).status == "fail"
    linear = torch.nn.Linear(32, 4)
    compiled = torch.compile(linear, backend="aot_eager")
    assert check(linear, like=compiled, inputs=inputs[:1]).passed


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def spread(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(tensor, mesh, [Replicate()])


TEXT = r"is a DTensor, of which this process has a part: take \.full_tensor\(\)"


@pytest.mark.host
def test_tensors_of_several_processes_are_refused_by_name(mesh: DeviceMesh) -> None:
    x, weight = normal(8, 32), normal(32, seed=6)
    inputs: list[Any] = [(spread(x, mesh), weight), {"x": x, "weight": spread(weight, mesh)}]
    for name, given in zip(("x", "weight"), inputs, strict=True):
        with pytest.raises(RecordError, match=rf"\[check\] {name} {TEXT}"):
            check(norm, like=norm, inputs=given)
        with pytest.raises(RecordError, match=rf"\[check\] {name} {TEXT}"):
            prepare(norm, given)
    with pytest.raises(UsageError, match=r"sealed: arguments\.0\.0 is a DTensor"):
        check(f"{KERNELS}:right", like=norm, inputs=inputs[0], sealed=True)
    with pytest.raises(RecordError, match=rf"\[check\] out {TEXT}"):
        check(norm, like=lambda x, weight: spread(norm(x, weight), mesh), inputs=(x, weight))
    with pytest.raises(TypeError, match=rf"the function's output out {TEXT}"):
        check(lambda x, weight: spread(norm(x, weight), mesh), like=norm, inputs=(x, weight))


def test_nested_tensors_are_refused_by_name_and_judged_as_their_parts() -> None:
    x = torch.nested.nested_tensor([normal(3, 8), normal(5, 8)], layout=torch.jagged)
    text = r"x is a nested tensor: take \.values\(\) and \.offsets\(\)"
    with pytest.raises(RecordError, match=rf"\[check\] {text}"):
        check(lambda x: x * 2, like=lambda x: x * 2, inputs=x)
    with pytest.raises(RecordError, match=rf"\[invariant\] {text}"):
        invariant(lambda x: x * 2, x)

    def softmax(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(values, offsets).softmax(-1).values()

    inputs = x.values(), x.offsets()
    assert check(softmax, like=lambda values, _: values.softmax(-1), inputs=inputs).passed
    assert "sequences in values" in invariant(softmax, inputs).reason


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.sparse_csr": torch.Tensor.to_sparse_csr,
    "torch.sparse_coo": torch.Tensor.to_sparse,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_are_refused_by_name(layout: str) -> None:
    x, sparse = normal(3, 8), LAYOUTS[layout](normal(4, 8).relu())
    dense, text = sparse.to_dense(), rf"is of layout {layout}, not torch\.strided: take \.to_dense"

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (weight @ x.mT).mT

    module = torch.nn.Linear(8, 4, bias=False)
    module.weight = torch.nn.Parameter(sparse, requires_grad=False)
    for name, like, inputs in (
        ("weight", product, (x, sparse)),
        (r"captured_\d", lambda x: product(x, sparse), (x,)),
        ("weight", module.eval(), (x,)),
        ("out", lambda x: LAYOUTS[layout](x), (x,)),
    ):
        with pytest.raises(RecordError, match=rf"\[check\] {name} {text}"):
            check(lambda x, *_: x @ dense.mT, like=like, inputs=inputs)
    with pytest.raises(TypeError, match=rf"the function's output out {text}"):
        check(lambda *it: LAYOUTS[layout](product(*it)), like=product, inputs=(x, dense))
    with pytest.raises(WrongError, match=f"takes a tensor that {text}"):
        check(
            product,
            like=lambda x, weight: product(x, LAYOUTS[layout](weight)),
            inputs=(x, dense),
        )


@pytest.mark.host
def test_modules_of_several_processes_are_refused_by_name(mesh: DeviceMesh, tmp_path: Any) -> None:
    linear = distribute_module(torch.nn.Linear(32, 4), mesh).eval()
    with pytest.raises(RecordError, match=rf"\[check\] weight {TEXT}"):
        check(linear, like=linear, inputs=normal(8, 32))
    with pytest.raises(RecordError, match=rf"\[check\] captured_\d\.weight {TEXT}"):
        check(linear, like=lambda x: linear(x), inputs=normal(8, 32))
    with (
        pytest.raises(RecordError, match=rf"\[record\] weight {TEXT}"),
        record(linear, tmp_path / "r"),
    ):
        pass
