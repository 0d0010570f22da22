"""attribute(): which quantised weights of a model cost how much of its results' error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    import torch

OUTPUTS = ("logits", "last_hidden_state")
"""Of a model that returns more than a tensor: the first that it has."""


@dataclass(frozen=True)
class Cost:
    """Of one layer, where its weight alone is as the codes say and all others are exact."""

    name: str
    weight: float
    """|W' - W| / |W|."""
    error: float
    """|y' - y| / |y| of the model's results."""


@dataclass(frozen=True)
class Attribution:
    """The costs of all layers with quantised weights, the dearest first."""

    costs: tuple[Cost, ...]
    together: float
    """|y' - y| / |y| with all of them at once."""

    def share(self, cost: Cost) -> float:
        """Of the sum of the squares of all. To first order the layers' errors add, and those of
        many layers are nearly orthogonal, so that squares add to that of `together`."""
        total = sum(it.error**2 for it in self.costs)
        return cost.error**2 / total if total else 0.0

    def __str__(self) -> str:
        width = max((len(it.name) for it in self.costs), default=5)
        lines = [f"{'layer':<{width}}  weight error  error of the results  share"]
        lines += [
            f"{it.name:<{width}}  {it.weight:12.2e}  {it.error:20.2e}  {self.share(it):5.1%}"
            for it in self.costs
        ]
        return "\n".join([*lines, f"{'together':<{width}}  {'':12}  {self.together:20.2e}"])


def attribute(
    quantised: torch.nn.Module, original: torch.nn.Module, *args: Any, **kwargs: Any
) -> Attribution:
    """How much of the error of `quantised` each of its weights costs.

        plumbline.attribute(quantised, original, input_ids)

    Everything runs in float64: the original with one weight replaced by what its codes say,
    exactly. What kernels add is not in it. Layers are those of `original` that are
    `torch.nn.Linear` and have another weight in `quantised`, by name; of one that also quantises
    what it is given, the weight alone counts. `args` and `kwargs` are those of the forward.

    Raises UsageError where no layer differs, shapes differ, or a layer's codes cannot be read (an
    operation whose inside is not seen: plumbline.register_decomposition).
    """
    import torch

    from ..trace.replay import run_lifted

    theirs = dict(quantised.named_modules())
    weights = {
        name: module
        for name, module in original.named_modules()
        if isinstance(module, torch.nn.Linear) and _differs(module, theirs.get(name))
    }
    if not weights:
        raise UsageError(
            "[attribute] no torch.nn.Linear of the original model has another weight in the "
            "quantised one, by name: give the model as it was, and as it is quantised"
        )
    exact = {name: _exact_weight(name, theirs[name], it) for name, it in weights.items()}

    def results() -> torch.Tensor:
        with torch.no_grad():
            return _tensor_of(run_lifted(original, args, kwargs, [original]).result)

    plain = results()
    size = float(plain.norm())

    def error(*names: str) -> float:
        with _weights_as(weights, {name: exact[name] for name in names}):
            return float((results() - plain).norm()) / size if size else 0.0

    def off(name: str) -> float:
        weight = weights[name].weight.detach().double()
        return float((exact[name] - weight).norm() / weight.norm())

    costs = [Cost(name, off(name), error(name)) for name in weights]
    costs.sort(key=lambda it: -it.error)
    return Attribution(tuple(costs), error(*weights))


def _differs(linear: torch.nn.Linear, other: torch.nn.Module | None) -> bool:
    import torch

    if other is None:
        return False
    weight: Any = getattr(other, "weight", None)
    if type(other) is not type(linear) or type(weight) not in (torch.Tensor, torch.nn.Parameter):
        return True
    own = linear.weight
    alike = weight.dtype == own.dtype and weight.shape == own.shape
    return not (alike and torch.equal(weight, own))


def _exact_weight(name: str, layer: torch.nn.Module, linear: torch.nn.Linear) -> torch.Tensor:
    """What the layer makes of the identity, in float64 of its exact codes: its weight, turned."""
    import torch

    from ..trace.given import Given
    from ..trace.lift import LiftError
    from ..trace.replay import Again, Runner
    from ..trace.reruns import exactly

    # As much as the smallest of kernels needs; a layer may take 16 bits alone.
    probe = torch.eye(linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)

    def again(run: Runner) -> Any:
        return run(layer, (probe,), {}, [layer])

    call: Again = again
    try:
        with torch.no_grad():
            _, found = exactly(
                lambda result, twin: {"out": (result, ())}, call, lambda run, given: None, Given()
            )
    except LiftError as error:
        raise UsageError(f"[attribute] {name}: {error}") from error
    weight = found["out"][0].detach().double()
    bias = getattr(layer, "bias", None)
    if isinstance(bias, torch.Tensor):
        weight = weight - bias.detach().double()
    if weight.mT.shape != linear.weight.shape:
        raise UsageError(
            f"[attribute] {name} gives {tuple(weight.mT.shape)}, the original's weight is "
            f"{tuple(linear.weight.shape)}: they are not the same model"
        )
    return weight.mT.contiguous()


@contextmanager
def _weights_as(
    layers: dict[str, torch.nn.Linear], values: dict[str, torch.Tensor]
) -> Iterator[None]:
    import torch

    old = {name: layers[name].weight for name in values}
    try:
        for name, value in values.items():
            layers[name].weight = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        for name, weight in old.items():
            layers[name].weight = weight


def _tensor_of(result: Any) -> torch.Tensor:
    import torch

    if isinstance(result, torch.Tensor):
        return result
    for name in OUTPUTS:
        found = getattr(result, name, None)
        if isinstance(found, torch.Tensor):
            return found
    raise UsageError(
        f"[attribute] the model returned {type(result).__name__}; expected a tensor, or "
        f"{' or '.join(OUTPUTS)} in it"
    )
