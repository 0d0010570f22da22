"""attribute(): the cost of each quantised weight, against float64 by hand."""

from __future__ import annotations

import copy
from typing import Any

import plumbline
import pytest
import torch
from plumbline import tiny
from test_record_quantised import Int8Linear

from python_inspector.cli.inspector import main


class Two(torch.nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(24, 40)
        self.second = torch.nn.Linear(40, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.silu(self.first(x)))


class Biased(Int8Linear):
    def __init__(self, of: torch.nn.Linear, codes: torch.dtype) -> None:
        super().__init__(of, codes)
        self.bias = of.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.bias


def decoded(layer: Any) -> torch.Tensor:
    weight: torch.Tensor = layer.weight.double() * layer.scale.double()
    return weight


def test_costs_are_those_of_float64_by_hand() -> None:
    original = Two()
    quantised = copy.deepcopy(original)
    quantised.first = Biased(original.first, torch.int8)
    quantised.second = Int8Linear(original.second, torch.float8_e4m3fn)
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(1))
    found = plumbline.attribute(quantised, original, x)
    wide = copy.deepcopy(original).double()
    plain = wide(x.double()).detach()
    by_name = {it.name: it for it in found.costs}
    for names in (("first",), ("second",), ("first", "second")):
        changed = copy.deepcopy(wide)
        for name in names:
            changed.get_submodule(name).weight.data = decoded(quantised.get_submodule(name))
        error = float((changed(x.double()).detach() - plain).norm() / plain.norm())
        ours = by_name[names[0]].error if len(names) == 1 else found.together
        assert ours == pytest.approx(error, rel=1e-9)
    assert [it.name for it in found.costs] == ["second", "first"]  # e4m3 has fewer bits than int8
    assert sum(map(found.share, found.costs)) == pytest.approx(1)
    assert original.first.weight.dtype == torch.float32  # as it was
    assert "together" in str(found) and "second" in str(found)


def test_of_a_whole_model_the_coarsest_layer_is_the_dearest() -> None:
    original = tiny.build("llama", torch.bfloat16).eval()
    quantised = copy.deepcopy(original)
    attention, mlp = quantised.model.layers[0].self_attn, quantised.model.layers[1].mlp
    attention.v_proj = Int8Linear(attention.v_proj, torch.int8)
    mlp.down_proj = Int8Linear(mlp.down_proj, torch.float8_e5m2)
    found = plumbline.attribute(quantised, original, torch.arange(3, 12)[None], use_cache=False)
    assert [it.name for it in found.costs] == [
        "model.layers.1.mlp.down_proj",
        "model.layers.0.self_attn.v_proj",
    ]
    parts = sum(it.error**2 for it in found.costs) ** 0.5
    assert found.together == pytest.approx(parts, rel=0.3)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_wrong_scale_is_seen_in_its_layer(scale: float) -> None:
    original = Two()
    quantised = copy.deepcopy(original)
    quantised.second = Int8Linear(original.second, torch.int8)
    with torch.no_grad():
        quantised.second.scale[3] *= scale
    (cost,) = plumbline.attribute(quantised, original, torch.ones(1, 24)).costs
    assert (cost.weight > 0.1) == (scale > 1)


def test_models_that_do_not_differ() -> None:
    with pytest.raises(plumbline.UsageError, match=r"no torch\.nn\.Linear of the original model"):
        plumbline.attribute(Two(), Two(), torch.ones(1, 24))


def test_models_that_are_not_the_same() -> None:
    original, other = Two(), Two()
    other.second = Int8Linear(torch.nn.Linear(40, 17), torch.int8)
    with pytest.raises(plumbline.UsageError, match=r"second gives \(17, 40\), the original's"):
        plumbline.attribute(other, original, torch.ones(1, 24))


def test_codes_that_cannot_be_read() -> None:
    library = torch.library.Library("attribution_test", "DEF")
    library.define("unseen(Tensor x, Tensor w) -> Tensor")
    library.impl("unseen", lambda x, w: x @ w.float().mT, "CPU")

    class Unseen(Int8Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.ops.attribution_test.unseen(x, self.weight)
            return result

    original = Two()
    other = copy.deepcopy(original)
    other.second = Unseen(original.second, torch.int8)
    with pytest.raises(plumbline.UsageError, match=r"\[attribute\] second: .*inside is not seen"):
        plumbline.attribute(other, original, torch.ones(1, 24))


def test_the_command_names_what_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path_factory.mktemp("model"))
    tiny.build("llama", torch.bfloat16).save_pretrained(folder)
    assert main(["attribute", "--model", folder, "--original", folder, "--tokens", "4"]) == 2
    assert "no torch.nn.Linear of the original model has another weight" in capsys.readouterr().err
    assert main(["attribute", "--model", folder, "--original", folder, "--tokens", "0"]) == 2
    assert "--tokens 0, expected at least 1" in capsys.readouterr().err
