"""Soundness and justness of verdicts without a native block: modules of models that have no taps,
computed rightly in other ways, and with one operation gone wrong."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

from python_inspector import Verdict, check
from python_inspector.api.verdict import WrongError

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

SIZES = {
    "num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 96, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 2,
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]
TOKENS = 9

CallOf = tuple[str, torch.nn.Module, dict[str, Any]]


def build(kind: str, dtype: torch.dtype, attention: str = "eager") -> torch.nn.Module:
    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, **SIZES)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    generator = torch.Generator().manual_seed(6)
    for parameter in model.parameters():
        size = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
        off = size * torch.randn(parameter.shape, generator=generator)
        parameter.data = (parameter.data * (parameter.ndim == 1) + off).to(dtype)
    return model.eval()


def calls(model: torch.nn.Module) -> list[CallOf]:
    """Every call of a module inside the model, its arguments by name."""
    found: list[CallOf] = []

    def hook(path: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            names = inspect.signature(module.forward).parameters
            found.append((path, module, dict(zip(names, args, strict=False)) | kwargs))

        return keep

    handles = [
        module.register_forward_pre_hook(hook(path), with_kwargs=True)
        for path, module in model.named_modules()
        if "layers.0" in path or path.endswith(("norm", "rotary_emb"))
    ]
    ids = torch.randint(3, 96, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


class SplitSums(TorchFunctionMode):
    """Linears as three float32 sums, added up."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return func(*args, **(kwargs or {}))
        x, weight, *bias = args
        parts = zip(x.tensor_split(3, -1), weight.tensor_split(3, -1), strict=True)
        out = sum(a.float() @ b.float().T for a, b in parts)
        return (out + bias[0].float() if bias and bias[0] is not None else out).to(x.dtype)


def split_sums(module: torch.nn.Module) -> Callable[..., Any]:
    def run(**inputs: Any) -> Any:
        with SplitSums():
            return module(**inputs)

    return run


def in_float32(module: torch.nn.Module) -> Callable[..., Any]:
    wide = copy.deepcopy(module).float()

    def up(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.float()
        return tuple(map(up, value)) if isinstance(value, tuple) else value

    return lambda **inputs: wide(**{name: up(value) for name, value in inputs.items()})


def on_two_threads(module: torch.nn.Module) -> Callable[..., Any]:
    def run(**inputs: Any) -> Any:
        torch.set_num_threads(2)
        try:
            return module(**inputs)
        finally:
            torch.set_num_threads(1)

    return run


class Fault(TorchFunctionMode):
    """The n-th result of some operation is wrong in one way."""

    KINDS = ("last term", "last token", "rounding")

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self._left = number
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            changed = self._changed(func, args, kwargs, out)
        if changed is None:
            return out
        self._left -= 1
        return changed if self._left == -1 else out

    def _changed(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return None
        name = getattr(func, "__name__", "")
        if self._kind == "last term" and name in ("linear", "matmul"):
            x = args[0].clone()
            x[..., -1] = 0
            return func(x, *args[1:], **kwargs)
        if self._kind == "last token" and name in ("mul", "linear", "add", "softmax"):
            if out.ndim < 3 or out.shape[-2] != TOKENS:
                return None
            return torch.cat([out[..., :-1, :], out[..., -2:-1, :]], -2)
        if self._kind == "rounding" and out.dtype == torch.float32 and name in ("mul", "linear"):
            return out.bfloat16().float()
        return None

    @property
    def applied(self) -> bool:
        return self._left < 0


def judged(function: Callable[..., Any], module: torch.nn.Module, inputs: Any) -> Verdict:
    def run(**given: Any) -> Any:
        with torch.no_grad():
            return function(**given)

    try:
        return check(run, like=module, inputs=inputs)
    except WrongError as error:
        return error.verdict


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["olmo2", "phi"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_computed_rightly_in_another_way_passes(kind: str, dtype: torch.dtype) -> None:
    other = dict(build(kind, dtype, "sdpa").named_modules())
    variants = [split_sums, on_two_threads, in_float32]
    wrong = []
    for path, module, inputs in calls(build(kind, dtype)):
        ways = [(make.__name__, make(module)) for make in variants]
        for name, function in [*ways, ("sdpa", other[path])]:
            verdict = judged(function, module, inputs)
            if verdict.status not in ("pass", "blind"):
                wrong.append(f"{path} {name}: {verdict}")
    assert wrong == []


def faults_of(
    module: torch.nn.Module, inputs: Any, kinds: Sequence[str]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Faults that change a bit, two of each kind."""

    def tensors(result: Any) -> list[torch.Tensor]:
        given = result if isinstance(result, tuple) else (result,)
        return [t for t in given if isinstance(t, torch.Tensor)]

    right = tensors(module(**inputs))
    for kind in kinds:
        for number in range(2):
            with Fault(number, kind) as fault:
                result = module(**inputs)
            pairs = zip(tensors(result), right, strict=True)
            if fault.applied and not all(torch.equal(a, b) for a, b in pairs):
                yield f"{kind} #{number}", lambda result=result, **_: result


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["olmo2", "phi"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operation_gone_wrong_fails(kind: str, dtype: torch.dtype) -> None:
    alive, count = [], 0
    # In a 16-bit layer one rounding more is as large as those that are there.
    kinds = Fault.KINDS if dtype == torch.float32 else Fault.KINDS[:2]
    for path, module, inputs in calls(build(kind, dtype)):
        with torch.no_grad():
            faults = list(faults_of(module, inputs, kinds))
        for name, function in faults:
            count += 1
            if judged(function, module, inputs).status != "fail":
                alive.append(f"{path} {name}")
    assert count >= 20
    assert alive == []
