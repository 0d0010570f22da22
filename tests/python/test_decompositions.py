"""Operations of libraries in `like`: their inside is not seen, or it is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from plumbline import UsageError, Verdict, WrongError, check, register_decomposition

from python_inspector.trace import decomposing
from python_inspector.trace.decoders import DECODERS

Kernel = Callable[..., Any]


@torch.library.custom_op("plumbline_test::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.float() @ weight.float().mT).to(x.dtype)


def in_parts(x: Any, weight: Any) -> Any:
    halves = zip(x.float().chunk(2, -1), weight.float().chunk(2, -1), strict=True)
    return sum(a @ b.mT for a, b in halves).to(x.dtype)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(3, 24, 96).to(dtype), normal(4, 32, 96).to(dtype)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[None]:
    register_decomposition("plumbline_test::product", request.param)
    yield
    decomposing._registered.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "moved",
    [
        lambda y: y,
        lambda y: y.mT.contiguous(),
        lambda y: torch.cat([y, y]),
        lambda y: torch.zeros_like(y).copy_(y),
        lambda y: y.to(torch.float64),
    ],
)
def test_what_is_not_seen_is_no_oracle(moved: Kernel, dtype: torch.dtype) -> None:
    with pytest.raises(WrongError, match="out is what plumbline_test::product gave, whose inside"):
        check(lambda x, w: moved(product(x, w)), lambda x, w: moved(product(x, w)), operands(dtype))


def test_what_is_computed_of_it_is_judged() -> None:
    def like(x: Any, weight: Any) -> Any:
        return torch.relu(product(x, weight)) + 1

    verdict = check(like, like, operands(torch.float32))
    assert verdict.passed and verdict.not_judged == ("what plumbline_test::product computes",)
    with pytest.raises(WrongError):
        check(lambda x, w: product(x, w) + 1, like, operands(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("registered", [lambda x, w: x @ w.mT], indirect=True)
@pytest.mark.usefixtures("registered")
def test_registered_code_is_the_oracle(dtype: torch.dtype) -> None:
    for kernel in (product, in_parts):
        verdict = check(kernel, product, operands(dtype))
        assert verdict.passed and not verdict.not_judged and "suspect" not in str(verdict)
    with pytest.raises(WrongError, match="fail"):
        check(lambda x, w: in_parts(x[:, :-1], w[:, :-1]), product, operands(dtype))


@pytest.mark.parametrize("registered", [lambda x, w: x @ w.mT * 1.01], indirect=True)
@pytest.mark.usefixtures("registered")
def test_in_16_bits_registered_code_that_is_wrong_is_said() -> None:
    for kernel in (lambda x, w: in_parts(x, w) * 1.01, product):
        try:
            text = str(check(kernel, product, operands(torch.bfloat16), explain=False))
        except WrongError as error:
            text = str(error)
        assert "what is said of plumbline_test::product may be wrong" in text


@pytest.mark.parametrize("registered", [lambda x, w: x @ w.mT * 1.001], indirect=True)
@pytest.mark.usefixtures("registered")
def test_registered_code_that_is_wrong_is_seen() -> None:
    with pytest.raises(WrongError, match="golden suspect"):
        check(product, product, operands(torch.float32))


@torch.library.custom_op("plumbline_test::scale_", mutates_args=("x",))
def scale_in_place(x: torch.Tensor, weight: torch.Tensor) -> None:
    x.copy_(scaled(x, weight))


@torch.library.custom_op("plumbline_test::write_", mutates_args=("cache",))
def write_in_place(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
    cache[at] += x
    return x * 2


def scaled(x: Any, weight: Any) -> Any:
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True)) * weight).to(x.dtype)


def of_a_clone(x: Any, weight: Any) -> Any:
    x = x.clone()
    scale_in_place(x, weight)
    return x


WRITING = {
    "plumbline_test::scale_": lambda x, weight: x.copy_(scaled(x, weight)),
    "plumbline_test::write_": lambda cache, x, at: (cache[at].add_(x), x * 2)[1],
}


@pytest.fixture
def writing() -> Iterator[None]:
    for name, code in WRITING.items():
        register_decomposition(name, code)
    yield
    decomposing._registered.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("writing")
def test_an_operation_that_writes_to_its_argument(dtype: torch.dtype) -> None:
    inputs = normal(3, 24, 96).to(dtype), normal(4, 96).to(dtype)

    def kernel(x: Any, weight: Any) -> None:
        x.copy_(scaled(x, weight))

    for like, right in (
        (lambda x, w: scale_in_place(x, w), kernel),
        (of_a_clone, scaled),
    ):
        assert check(right, like, inputs, explain=False).passed
        with pytest.raises(WrongError, match="fail"):
            check(lambda x, w, right=right: right(x, w * 1.1), like, inputs, explain=False)


@pytest.mark.usefixtures("writing")
def test_one_that_writes_and_returns() -> None:
    inputs = normal(3, 4, 96), normal(4, 96)

    def kernel(cache: Any, x: Any, times: int = 1) -> Any:
        cache[2] += x * times
        return x + x

    def like(cache: Any, x: Any) -> Any:
        return write_in_place(cache, x, 2)

    assert check(kernel, like, inputs, explain=False).passed
    with pytest.raises(WrongError, match="fail"):
        check(lambda cache, x: kernel(cache, x, 2), like, inputs, explain=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_written_unseen_is_no_oracle(dtype: torch.dtype) -> None:
    inputs = normal(3, 24, 96).to(dtype), normal(4, 96).to(dtype)
    for like in (of_a_clone, lambda x, w: scale_in_place(x, w)):
        with pytest.raises(WrongError, match="is what plumbline_test::scale_ gave, whose inside"):
            check(like, like, inputs)

    def computed(x: Any, weight: Any) -> Any:
        return torch.relu(of_a_clone(x, weight)) + 1

    verdict = check(computed, computed, inputs)
    assert verdict.passed and verdict.not_judged == ("what plumbline_test::scale_ computes",)
    with pytest.raises(WrongError, match="fail"):
        check(lambda *it: computed(*it) * 1.1, computed, inputs)


def test_a_name_without_a_namespace() -> None:
    with pytest.raises(UsageError, match="operation is 'product'; it is a namespace and a name"):
        register_decomposition("product", in_parts)


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        ("plumbline_test::product", None, "code of plumbline_test::product is None; it is a func"),
        ("plumbline_test::product.default", in_parts, "name all of them: 'plumbline_test::product"),
        ("aten::mm", in_parts, "aten::mm is torch's own"),
        ("aten::_softmax", in_parts, "aten::_softmax is torch's own"),
    ],
)
def test_what_is_not_registered(operation: str, code: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        register_decomposition(operation, code)
    assert not decomposing._registered


def test_torchs_own_for_few_dtypes() -> None:
    register_decomposition("aten::_scaled_mm", in_parts)
    decomposing._registered.clear()


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        (lambda x, w: None, "gives None, the operation itself torch.float32"),
        (lambda x, w: x @ w.mT[:, :-1], r"gives torch.float32 \[24, 31\], the operation itself"),
        (lambda x, w: (x @ w.mT).long(), r"gives torch.int64 \[24, 32\], the operation itself"),
    ],
    indirect=["registered"],
)
@pytest.mark.usefixtures("registered")
def test_registered_code_that_gives_another_form(words: str) -> None:
    with pytest.raises(UsageError, match=f"plumbline_test::product {words}"):
        check(product, product, operands(torch.float32))


def test_a_failure_says_what_to_do_about_what_is_not_seen() -> None:
    def like(x: Any, weight: Any) -> Any:
        return torch.nn.functional.silu(product(x, weight))

    def kernel(x: Any, weight: Any) -> Any:
        return torch.nn.functional.silu(x @ weight.mT * 1.01)

    advice = "what plumbline_test::product computes is not seen.*plumbline.register_decomposition"
    with pytest.raises(WrongError, match=advice):
        check(kernel, like, operands(torch.float32))
    register_decomposition("plumbline_test::product", in_parts)
    try:
        with pytest.raises(WrongError) as failed:
            check(kernel, like, operands(torch.float32))
    finally:
        decomposing._registered.clear()
    assert "register_decomposition" not in str(failed.value)


LIBRARIES = {
    "bitsandbytes::gemm_4bit": "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, "
    "str quant_type, Tensor? bias=None, Tensor? absmax_8bit=None, Tensor? absmax_code=None, "
    "Tensor? absmax_offset=None) -> Tensor",
    "bitsandbytes::int8_scaled_mm": "(Tensor A, Tensor B, Tensor row_stats, Tensor col_stats, "
    "Tensor? bias=None, ScalarType? dtype=None) -> Tensor",
    "quanto::qbytes_mm": "(Tensor A, Tensor B, Tensor scales) -> Tensor",
}
NF4 = torch.tensor([
    -1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
])  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    """Operations of these names, as an installed library has them; what they run is torch's."""
    made = []
    for name, schema in LIBRARIES.items():
        space, _, short = name.partition("::")
        library = torch.library.Library(space, "FRAGMENT")
        library.define(short + schema)
        library.impl(short, DECODERS[name], "CompositeExplicitAutograd")
        made.append(library)
    yield
    for library in made:
        library._destroy()


def nf4(x: Any, packed: Any, scales: Any, high_first: bool = True, of: int = 0) -> Any:
    """The product in float32, of codes looked up one by one."""
    pair = (packed >> 4, packed & 15) if high_first else (packed & 15, packed >> 4)
    codes = torch.stack(pair, -1).reshape(32, 128).long()
    weight = NF4.to(codes.device)[codes] * scales.roll(of).reshape(32, 2, 1).expand(
        32, 2, 64
    ).reshape(32, 128)
    return (x.float() @ weight.mT).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nf4(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(8)
    packed = torch.randint(0, 256, (32 * 64, 1), generator=g, dtype=torch.uint8)
    inputs = normal(9, 16, 128).to(dtype), packed, torch.rand(64, generator=g) + 0.1

    def like(x: Any, packed: Any, scales: Any) -> Any:
        return torch.ops.bitsandbytes.gemm_4bit(x, packed, [32, 128], scales, 64, "nf4")

    assert check(like, like, inputs).passed
    assert check(nf4, like, inputs).passed
    for wrong in ({"high_first": False}, {"of": 1}):
        with pytest.raises(WrongError, match="fail"):
            check(lambda *it, wrong=wrong: nf4(*it, **wrong), like, inputs)


def int8(x: Any, weight: Any, scales: Any) -> Any:
    return (x.double() @ (weight.double() * scales.double()).mT).to(scales.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(8)
    codes = torch.randint(-127, 128, (48, 64), generator=g, dtype=torch.int8)
    scales = (torch.rand(48, 1, generator=g) + 0.5).to(dtype)
    inputs = normal(9, 16, 64).to(dtype), codes, scales

    def like(x: Any, codes: Any, scales: Any) -> Any:
        return torch.ops.quanto.qbytes_mm(x, codes, scales)

    assert check(like, like, inputs).passed
    assert check(int8, like, inputs).passed
    with pytest.raises(WrongError, match="fail"):
        check(lambda x, c, s: int8(x, c, s.roll(1, 0)), like, inputs)


def test_int8_of_both() -> None:
    """Sums of codes are exact: the scales alone round."""
    g = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-127, 128, (n, 64), generator=g, dtype=torch.int8) for n in (9, 12))
    inputs = a, b, torch.rand(9, generator=g), torch.rand(12, generator=g)

    def like(*operands: Any) -> Any:
        return torch.ops.bitsandbytes.int8_scaled_mm(*operands, dtype=torch.bfloat16)

    def kernel(a: Any, b: Any, rows: Any, columns: Any, of: int = 127) -> Any:
        sums = a.double() @ b.double().mT
        return (sums * (rows[:, None] / of) * (columns / of)).to(torch.bfloat16)

    assert check(kernel, like, inputs).passed
    with pytest.raises(WrongError, match="fail"):
        check(lambda *it: kernel(*it, of=128), like, inputs)


class Scaled(torch.Tensor):
    """A weight of codes and scales, as those of torchao: linear scales the product."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scales: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scales.dtype)

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Any], *_: Any) -> Any:
        return cls(inner["codes"], inner["scales"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight = args[:2]
            if x.dtype not in (torch.float32, torch.bfloat16):
                raise TypeError(f"no kernel for {x.dtype}")
            return (x @ weight.codes.to(x.dtype).mT) * weight.scales.mT
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.mul.Tensor:
            return args[0].codes * args[0].scales * args[1]
        raise NotImplementedError(str(func))


def of_scaled(dtype: torch.dtype) -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(6)
    codes = torch.randint(-127, 128, (24, 64), generator=g, dtype=torch.int8)
    scales = (torch.rand(24, 1, generator=g) + 0.5).to(dtype)
    module = torch.nn.Linear(64, 24, bias=False)
    module.weight = torch.nn.Parameter(Scaled(codes, scales), requires_grad=False)
    return module, codes, scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_weight_that_is_made_of_other_tensors(dtype: torch.dtype) -> None:
    module, codes, scales = of_scaled(dtype)
    inputs = (normal(7, 12, 64).to(dtype),)
    assert check(module, module, inputs).passed
    assert check(lambda x: int8(x, codes, scales), module, inputs).passed
    with pytest.raises(WrongError, match="fail"):
        check(lambda x: int8(x, codes, scales.roll(1, 0)), module, inputs)


def test_such_a_weight_where_it_meets_an_operation() -> None:
    module, codes, scales = of_scaled(torch.float32)

    class Times(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = module.weight

        def forward(self, x: Any) -> Any:
            return self.weight * x

    verdict: Verdict = check(lambda x: codes * (scales * x), Times(), (normal(7, 24, 64),))
    assert verdict.passed
    with pytest.raises(WrongError, match="fail"):
        check(lambda x: codes * (scales.roll(1, 0) * x), Times(), (normal(7, 24, 64),))


def test_nf4_as_it_is_packed_for_a_cpu() -> None:
    """bitsandbytes with AVX-512: byte i of 32 has codes i and i + 32 of a run of pairs."""
    g = torch.Generator().manual_seed(2)
    rows, columns, size = 64, 128, 64
    codes = torch.randint(0, 16, (rows, columns), generator=g)
    packed = torch.zeros(rows * columns // 2, dtype=torch.uint8)
    for block in range(rows // 32):
        for pair in range(columns // 2):
            run = [
                int(codes[32 * block + r, 2 * pair + side]) for r in range(32) for side in (0, 1)
            ]
            at = (block * columns // 2 + pair) * 32
            for i in range(32):
                packed[at + i] = run[i] | run[i + 32] << 4
    scales = torch.rand(columns // size, rows, generator=g)
    x = normal(3, 5, columns)
    table = NF4.to(x.device)
    weight = table[codes] * scales.mT.repeat_interleave(size, 1)
    given = (x, packed.reshape(rows, columns // 2), [rows, columns], scales, table, size)
    y = DECODERS["bitsandbytes::gemv_4bit"](*given)
    assert torch.allclose(y, x @ weight.mT, rtol=1e-5)
