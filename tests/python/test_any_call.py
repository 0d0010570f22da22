"""Calls that no tap describes: inputs, outputs, states, choices, what cannot be lifted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Recording
from torch.nn import functional
from transformers import DynamicCache

from python_inspector import RecordWarning, record
from python_inspector.format.validate import validate
from python_inspector.taps.options import Proof
from python_inspector.trace.given import Given, watched
from python_inspector.trace.replay import aside, run_watched

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.RecordWarning")


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def recorded_call(module: torch.nn.Module, out: Path, *args: Any, **kwargs: Any) -> Recording:
    """One call of a module by itself, recorded."""
    if next(module.parameters(), None) is None:  # a recording's storage is that of its weights
        module.register_parameter("anchor", torch.nn.Parameter(torch.zeros(1)))
    module.eval()
    with torch.no_grad(), record(module, out):
        module(*args, **kwargs)
    assert validate(out) == []
    return Recording(out)


class Nested(torch.nn.Module):
    """Arguments in tuples and dicts, a number, a buffer that is used and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", randn(4))
        self.register_buffer("unused", randn(4))

    def forward(self, x: torch.Tensor, pair: Any, more: Any, scale: float = 1.0) -> Any:
        return x * pair[0] * self.table + pair[1], {"a": more["b"] * scale, "n": None}


def test_arguments_and_results_by_name(tmp_path: Path) -> None:
    recording = recorded_call(
        Nested(), tmp_path / "r", randn(2, 4), (randn(2, 4), randn(4)), {"b": randn(3)}, scale=0.5
    )
    (checkpoint,) = recording.checkpoints
    assert checkpoint["id"] == "model:forward#0"
    assert list(checkpoint["inputs"]) == ["x", "pair.0", "pair.1", "more.b", "buffers.table"]
    assert list(checkpoint["outputs"]) == ["out.0", "out.1"]
    assert checkpoint["params"] == {"scale": 0.5}
    x, a, b, more, table = recording.inputs(checkpoint).values()
    assert torch.allclose(recording.oracle(checkpoint, "out.0"), x * a * table + b, rtol=1e-12)
    assert torch.equal(recording.oracle(checkpoint, "out.1"), more * 0.5)


class State:
    """A cache of a user's own class."""

    def __init__(self) -> None:
        self.sums = {0: randn(3), 1: randn(3)}


class Stateful(torch.nn.Module):
    """Writes to a tensor argument, to a state object, to a buffer and to a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.weight = torch.nn.Parameter(randn(3))

    def forward(self, x: torch.Tensor, total: torch.Tensor, state: State) -> torch.Tensor:
        total += x
        state.sums[1].mul_(0.5).add_(x)
        self.count.add_(1)
        self.weight.div_(2)
        return total * self.weight + state.sums[1] + self.count


@pytest.mark.host
def test_reruns_change_nothing_and_states_are_outputs(tmp_path: Path) -> None:
    alone, seen = Stateful().eval(), Stateful()
    results = []
    for module in (alone, seen):
        x, total, state = randn(3, seed=1), randn(3, seed=2), State()
        if module is seen:
            recording = recorded_call(module, tmp_path / "r", x, total, state)
        else:
            with torch.no_grad():
                module(x, total, state)
        results.append([total, *state.sums.values(), module.count, module.weight.data])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    (checkpoint,) = recording.checkpoints
    assert list(checkpoint["outputs"]) == ["out", "total_after", "state.sums.1_after"]
    given = recording.inputs(checkpoint)
    after = recording.oracle(checkpoint, "state.sums.1_after")
    assert torch.allclose(after, given["state.sums.1"] * 0.5 + given["x"], rtol=1e-7)
    stored = recording.tensor(checkpoint["outputs"]["total_after"]["tensor"])
    assert torch.equal(stored, results[0][0].double())


class Attention(torch.nn.Module):
    layer_idx = 1

    def forward(self, x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        keys, values = cache.update(x, x * 2, self.layer_idx)
        return functional.softmax(x @ keys.mT, -1) @ values


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        return x + self.attention(x, cache)


def test_a_part_s_state_is_not_the_whole_s(tmp_path: Path) -> None:
    """The cache's layer is an input of both; keys and values after are the attention's outputs."""
    cache = DynamicCache()
    for layer in (0, 1):
        cache.update(randn(1, 1, 2, 4), randn(1, 1, 2, 4), layer)
    recording = recorded_call(Layer(), tmp_path / "r", randn(1, 1, 3, 4), cache)
    inner, outer = recording.of("module")
    assert list(inner["inputs"]) == ["x", "cache.1.keys", "cache.1.values"] == list(outer["inputs"])
    assert list(inner["outputs"]) == ["out", "cache.1.keys_after", "cache.1.values_after"]
    assert list(outer["outputs"]) == ["out"]
    assert cache.layers[1].keys.shape[2] == 5


class Looking(torch.nn.Module):
    """Frees what it computed with, and then looks at a cache's layer that it has no use for."""

    layer_idx = 1

    def forward(self, x: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        passing = [x + i for i in range(200)]
        total = torch.stack(passing).sum(0)
        del passing
        assert cache.layers[0] is not None  # a rerun copies it now, to addresses that are free
        return total


def test_what_lies_where_something_was_read_is_no_input(tmp_path: Path) -> None:
    cache = DynamicCache()
    cache.update(randn(1, 1, 2, 4), randn(1, 1, 2, 4), 0)
    recording = recorded_call(Looking(), tmp_path / "r", randn(1, 1, 3, 4), cache)
    (checkpoint,) = recording.of("module")
    assert list(checkpoint["inputs"]) == ["x"]


def test_tensors_in_lists_and_in_keywords_count_as_used() -> None:
    a, b, listed, sorter = randn(3).sort().values, randn(3), randn(3), torch.arange(3)
    given = Given()
    with watched(given, {}):
        torch.cat([listed, torch.searchsorted(a, b, sorter=sorter)])
    assert all(t in given.used for t in (a, b, listed, sorter))


def test_no_later_tensor_counts_as_used() -> None:
    """Neither within a run nor after it, though those that were read are gone."""
    given, x = Given(), randn(4)
    later = []
    with watched(given, {}):
        for _ in range(100):
            y = x + 1
            y.mul(2)
            del y
            later.append(torch.empty(4))
    later += [torch.empty(4) for _ in range(1000)]
    assert x in given.used
    assert not any(t in given.used for t in later)


class Replacing(torch.nn.Module):
    """Writes to a tensor in a list of its own, and has another one there in the next run."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.sums[0].add_(x).clone()
        self.sums[0] = torch.zeros(3)
        return total


def test_what_was_written_to_is_put_back_though_it_is_replaced() -> None:
    module, given, x = Replacing(), Given(), randn(3)
    with aside():
        for _ in range(2):
            run_watched(given)(module.forward, (x,), {}, [module])
    assert all(not t.any() for t, _ in given.kept.values())


class Router(torch.nn.Module):
    """Two of five experts for each row."""

    def forward(self, logits: torch.Tensor) -> Any:
        weights, index = torch.topk(logits.softmax(-1), 2, -1)
        return weights, index


class Mixture(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(8, 5, bias=False, dtype=dtype)
        self.router = Router()
        self.experts = torch.nn.Parameter(randn(5, 8, 8, dtype=dtype, seed=9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, index = self.router(self.gate(x))
        made = torch.einsum("td,tkde->tke", x, self.experts[index])
        return (made * weights[..., None]).sum(1)


def test_leaves_alone(tmp_path: Path) -> None:
    with (
        torch.no_grad(),
        record(Mixture(torch.float32).eval(), tmp_path / "r", proof=Proof(oracle="leaves")) as r,
    ):
        r.model(randn(3, 8))
    assert [c["id"] for c in Recording(tmp_path / "r").checkpoints] == ["gate#0", "router#0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_undecidable_rows_and_no_others(tmp_path: Path, dtype: torch.dtype) -> None:
    """Row 2 has a tie for the last place, row 4 one between the two that are chosen anyway."""
    mixture, x = Mixture(dtype), randn(6, 8, dtype=dtype)
    with torch.no_grad():
        mixture.gate.weight.copy_(torch.eye(5, 8))
    for row, logits in {2: [3.0, 2, 2, -1, -2], 4: [3.0, 3, 1, -1, -2]}.items():
        x[row, :5] = torch.tensor(logits)
    for row in (0, 1, 3, 5):
        x[row, :5] = torch.tensor([4.0, 2, 0, -2, -4]).roll(row)
    recording = recorded_call(mixture, tmp_path / "r", x)
    router = recording.by_id["router#0"]
    undecidable = recording.raw(router["outputs"]["out.1"]["undecidable"])
    assert undecidable.any(-1).tolist() == [False, False, True, False, True, False]
    assert undecidable[2].tolist() == [False, True]
    whole = recording.valid(recording.by_id["model:forward#0"])
    assert whole.all(-1).tolist() == [True, True, False, True, True, True]


@pytest.mark.host
def test_the_oracle_follows_the_reference(tmp_path: Path) -> None:
    """Logits that bfloat16 rounds to a tie: float64 alone would choose the other expert."""
    mixture = Mixture(torch.bfloat16)
    with torch.no_grad():
        mixture.gate.weight.copy_(torch.eye(5, 8))
        mixture.gate.weight[0, 5] = 2.0**-9
    x = randn(3, 8, dtype=torch.bfloat16)
    x[:, :5] = torch.tensor([1.0, 1.0, 3.0, -4.0, -4.0])
    x[:, 5] = 1.0
    recording = recorded_call(mixture, tmp_path / "r", x)
    assert recording.raw(recording.by_id["router#0"]["outputs"]["out.1"]["tensor"])[0, 1] == 1
    output = recording.by_id["model:forward#0"]["outputs"]["out"]
    r, o = recording.tensor(output["tensor"]), recording.oracle(recording.by_id["model:forward#0"])
    assert (r - o).norm() < 0.01 * o.norm()


@torch.library.custom_op("plumbline_test::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


class Quantised(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = (x * 2).to(torch.float8_e4m3fn)
        return codes.to(x.dtype) / 2 + cubed(x).exp() + x.view(torch.int32).view(torch.float32)


def test_an_opaque_operation_is_taken_as_given(tmp_path: Path) -> None:
    module, x = Quantised(), randn(4, 8)
    with pytest.warns(RecordWarning) as caught:
        recording = recorded_call(module, tmp_path / "r", x)
    said = "\n".join(str(w.message) for w in caught)
    for name in ("plumbline_test::cubed", "aten::view"):
        assert f"model:forward: what {name}" in said
    assert "aten::_to_copy" not in said  # codes are choices
    codes = (x * 2).to(torch.float8_e4m3fn).double()
    exact = codes / 2 + (x * x * x).double().exp() + x.double()
    assert torch.allclose(recording.oracle(recording.checkpoints[0]), exact.cpu(), rtol=1e-12)
    operations = recording.json["traces"][recording.checkpoints[0]["trace"]]["operations"]
    assert {"mul", "exp", "add", "cubed"} <= {entry["op"] for entry in operations}


class Grouped(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(randn(3, 16, 8, dtype=dtype))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return functional.grouped_mm(x, self.weight, offs=ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products(tmp_path: Path, dtype: torch.dtype) -> None:
    module, x = Grouped(dtype), randn(9, 16, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = torch.tensor([4, 4, 9], dtype=torch.int32)
        recording = recorded_call(module, tmp_path / "r", x, ends)
    (checkpoint,) = recording.checkpoints
    weight = module.weight.detach().double()
    exact = torch.cat([x[:4].double() @ weight[0], x[4:].double() @ weight[2]])
    assert torch.allclose(recording.oracle(checkpoint), exact.cpu(), rtol=1e-7)
    spread = checkpoint["outputs"]["out"]["spread"]
    if dtype == torch.float32:  # of sums of 16 terms; a function is off by more
        assert 5e-8 < spread["tensor"][0] < 1.05e-7
    operations = recording.json["traces"][checkpoint["trace"]]["operations"]
    assert operations == [
        {"op": "_grouped_mm", "stores": "f32" if dtype == torch.float32 else "bf16", "terms": 16}
    ]


class Turned(torch.nn.Module):
    """Rotary by complex numbers, as LLaMA 4 and DeepSeek have it."""

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> Any:
        turn = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2).type_as(x), turn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_complex_rotary(tmp_path: Path, dtype: torch.dtype) -> None:
    x, angles = randn(5, 8, dtype=dtype), randn(5, 4)
    recording = recorded_call(Turned(), tmp_path / "r", x, angles)
    (checkpoint,) = recording.checkpoints
    o = recording.oracle(checkpoint, "out.0")
    even, odd = x.double()[:, ::2], x.double()[:, 1::2]
    cos, sin = angles.double().cos(), angles.double().sin()
    exact = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    assert torch.allclose(o, exact.cpu(), atol=1e-9 if dtype == torch.bfloat16 else 1e-13)
    spread = checkpoint["outputs"]["out.0"]["spread"]
    assert 0 < spread["tensor"][0] < (1e-6 if dtype == torch.float32 else 1e-2)
    assert recording.raw(checkpoint["outputs"]["out.1"]["tensor"]).shape == (5, 4, 2)


@pytest.mark.parametrize(
    "dtypes", [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)]
)
def test_a_cast_between_16_bit_formats_rounds(tmp_path: Path, dtypes: tuple[Any, Any]) -> None:
    class Cast(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(dtypes[1])

    recording = recorded_call(Cast(), tmp_path / "r", randn(5, 8, dtype=dtypes[0]))
    (checkpoint,) = recording.checkpoints
    operations = recording.json["traces"][checkpoint["trace"]]["operations"]
    assert [entry["op"] for entry in operations] == ["_to_copy"]
