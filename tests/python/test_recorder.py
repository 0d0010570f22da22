"""record(): the run stays what it was, everything is put back, ids and steps are right."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import DTYPES, Recording, asked, ids, recorded, run
from transformers import masking_utils
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama

import python_inspector
from python_inspector import RecordError, RecordWarning, note, record, save, tiny
from python_inspector.format.validate import validate
from python_inspector.recorder.difference import Difference, difference
from python_inspector.taps.options import COMPOSITES, What

PATCHED = ("apply_rotary_pos_emb", "eager_attention_forward", "repeat_kv", "create_causal_mask")


def surroundings(model: torch.nn.Module) -> list[Any]:
    """Everything that record() touches."""
    hooks = [
        (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._modules), dict(m._buffers))
        for m in model.modules()
    ]
    functions = [getattr(f, n) for f in (modeling_llama, modeling_gemma2) for n in PATCHED]
    tables = (ALL_ATTENTION_FUNCTIONS, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS)
    flags = (
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.overrides._get_current_function_mode(),
    )
    return [hooks, functions, [dict(t._local_mapping) for t in tables], flags, Cache.update]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    ("name", "mode", "attention"),
    [
        ("llama-a1", "decode", "eager"),
        ("llama-a1", "padded-decode", "sdpa"),
        ("gemma2-a4", "padded-decode", "eager"),
        ("llama-a3-dynamic", "decode", "eager"),
        ("llama-a3-longrope", "decode", "eager"),
    ],
)
def test_the_run_keeps_its_bits_and_all_is_restored(
    tmp_path: Path, name: str, mode: str, attention: str, dtype: str
) -> None:
    def build() -> torch.nn.Module:
        return tiny.build(name, DTYPES[dtype], attention=attention)

    plain = run(build(), mode)
    model = build()
    before, weights = surroundings(model), {n: p.clone() for n, p in model.named_parameters()}
    with record(model, tmp_path / "recording"):
        logits = run(model, mode)
    assert all(torch.equal(a, b) for a, b in zip(plain, logits, strict=True))
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    if name == "llama-a1" or name == "gemma2-a4":  # the others re-register inv_freq themselves
        assert surroundings(model) == before


class OnPurposeError(Exception):
    pass


def test_an_exception_restores_everything_and_leaves_no_file(tmp_path: Path) -> None:
    model = tiny.build("gemma2-a4")

    def fail(*_: Any) -> None:
        raise OnPurposeError

    handle = model.model.layers[2].mlp.register_forward_hook(fail)
    before = surroundings(model)
    with pytest.raises(OnPurposeError), record(model, tmp_path / "recording"):
        run(model, "whole")
    assert surroundings(model) == before
    assert list(tmp_path.iterdir()) == []
    handle.remove()


def test_a_caught_exception_does_not_shift_what_follows(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    fails = [True]

    def fail(*_: Any) -> None:
        if fails.pop() if fails else False:
            raise OnPurposeError

    model.model.layers[1].mlp.register_forward_hook(fail)
    with record(model, tmp_path / "recording") as recorder:
        with pytest.raises(OnPurposeError):
            run(model, "whole")
        assert recorder.stack == []
        run(model, "whole")
    recording = Recording(tmp_path / "recording")
    assert validate(tmp_path / "recording") == []
    assert "model.layers.1#1" not in recording.by_id
    assert recording.by_id["model.layers.1#0"]["step"] == 1
    assert recording.by_id["model.layers.0#1"]["step"] == 1


def test_a_module_called_twice_is_two_checkpoints(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner(x))  # type: ignore[no-any-return]

    model = Twice().eval()
    with pytest.warns(RecordWarning, match="no taps"), record(model, tmp_path / "r"):
        model(torch.randn(1, 2, 4))
        model(torch.randn(1, 2, 4))
    recording = Recording(tmp_path / "r")
    assert [(c["id"], c["step"]) for c in recording.of("linear")] == [
        ("inner#0", 0),
        ("inner#1", 0),
        ("inner#2", 1),
        ("inner#3", 1),
    ]
    first, second = recording.of("linear")[:2]
    assert first["outputs"]["out"]["tensor"] == second["inputs"]["x"]["tensor"]


def test_tensors_changed_in_place_are_recorded_as_they_were(tmp_path: Path) -> None:
    class InPlace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.inner(x)
            x += 1
            return self.inner(x) + first  # type: ignore[no-any-return]

    x = torch.randn(1, 2, 4)
    before = x.clone()
    model = InPlace().eval()
    with pytest.warns(RecordWarning), record(model, tmp_path / "r"), torch.no_grad():
        model(x)
    recording = Recording(tmp_path / "r")
    given = [recording.raw(c["inputs"]["x"]["tensor"]) for c in recording.of("linear")]
    assert torch.equal(given[0], before)
    assert torch.equal(given[1], before + 1)


def test_the_error_of_denormals_is_that_of_what_is_stored() -> None:
    """delta is rounded to multiples of the smallest float32, which are seen in so small values."""
    r = torch.tensor([3, 5, -7], dtype=torch.float32) * 2.0**-149
    o = torch.tensor([3.4, 5.6, -8.7], dtype=torch.float64) * 2.0**-149
    found = difference(r, o, None, "x")
    assert found.delta is not None
    stored = found.delta.double()
    assert found.error == float(stored.norm() / (r.double() + stored).norm())


def test_the_error_where_the_oracle_is_nearly_zero_is_that_of_what_is_stored() -> None:
    """delta is a float32, whose rounding is far more than so small an oracle."""
    r = torch.tensor([[0.9, -0.7], [0.3, 0.5]], dtype=torch.float64).bfloat16()
    o = torch.tensor([[1e-12, -2e-12], [0.3, 0.5]], dtype=torch.float64)
    for valid, rows in ((None, slice(0, 2)), (torch.tensor([[True], [False]]), slice(0, 1))):
        found = difference(r, o, valid, "x")
        assert found.delta is not None
        stored, exact = found.delta.double()[rows], r.double()[rows]
        size = (exact + stored).norm()
        assert found.error == pytest.approx(
            float(stored.norm() / size) if size else torch.inf, rel=1e-7
        )


def test_difference() -> None:
    r = torch.tensor([1.0, 2.0, torch.inf, -torch.inf, torch.nan])
    o = r.double()
    assert difference(r, o, None, "x") == Difference(None, 0.0)
    o[1] += 3e-8
    found = difference(r, o, None, "x")
    assert found.delta is not None
    assert found.delta.tolist() == [0, torch.tensor(3e-8).item(), 0, 0, 0]
    assert found.error == pytest.approx(3e-8 / 5**0.5)  # of the finite ones
    o[0] = torch.nan
    assert torch.tensor(difference(r, o, None, "x").error).isnan()
    r, o = torch.tensor([[3.0, 4.0], [7.0, 1.0]]), torch.tensor([[3.0, 4.5], [9.0, 1.0]]).double()
    valid = torch.tensor([[True], [False]])
    found = difference(r, o, valid, "x")
    assert found.delta is not None
    assert found.delta.tolist() == [[0, 0.5], [2, 0]]
    assert found.error == pytest.approx(0.5 / (9 + 4.5**2) ** 0.5)
    assert difference(r[1:], o[1:], torch.tensor([[False]]), "x").error == 0
    assert difference(torch.ones(2), torch.zeros(2).double(), None, "x").error == torch.inf
    assert difference(torch.tensor([1]), torch.tensor([1]), None, "x") == Difference(None, 0.0)
    with pytest.raises(RecordError, match=r"output is \(2, 2\), its oracle \(1, 2\)"):
        difference(r, o[:1], None, "x")


def test_nan_of_the_run_alone_is_warned_about(tmp_path: Path) -> None:
    """In float64 transformers casts finfo.min to float32 in softmax: a row of -inf, so NaN."""
    model = tiny.build("llama-a1", torch.float64)
    with (
        pytest.warns(RecordWarning, match="sdpa.softmax#0: out is NaN in the run"),
        record(model, tmp_path / "r", What(blocks=["softmax"])),
    ):
        run(model, "padded")
    assert Recording(tmp_path / "r").of("softmax")[0]["outputs"]["out"]["error"] == "nan"


def test_steps_count_forward_calls(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "decode", "f32")
    assert [c["step"] for c in recording.of("lm_head")] == [0, 1, 2, 3, 4]
    assert [c["call"] for c in recording.of("lm_head")] == [0, 1, 2, 3, 4]
    assert recording.json["provenance"]["run"] == {
        "mode": "decode", "batch": 2, "tokens": 11, "steps": 4,
        "chunks": None, "left_pad": None, "cache": "dynamic", "spread": 16,
    }  # fmt: skip


def test_save_and_note(tmp_path: Path) -> None:
    save("nothing", torch.zeros(1))
    note(nothing=1)
    model = tiny.build("llama-a1")
    forward = modeling_llama.LlamaMLP.forward

    def own(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = forward(self, x)
        save("mine", out * 2, axes=("batch", "token", "channel"))
        note(calls=1)
        return out

    modeling_llama.LlamaMLP.forward = own
    try:
        with record(model, tmp_path / "r", What(layers=[1])):
            run(model, "whole")
            save("after", torch.ones(3))
    finally:
        modeling_llama.LlamaMLP.forward = forward
    recording = Recording(tmp_path / "r")
    assert validate(tmp_path / "r") == []
    saved = recording.of("module")
    mine = [f"model.layers.{i}.mlp:mine#0" for i in range(3)]
    assert [c["id"] for c in saved] == [*mine, "model:after#0"]
    assert saved[1]["outputs"]["out"]["axes"] == ["batch", "token", "channel"]
    mlp = recording.by_id["model.layers.1.mlp#0"]
    assert torch.equal(
        recording.raw(saved[1]["outputs"]["out"]["tensor"]),
        recording.raw(mlp["outputs"]["out"]["tensor"]) * 2,
    )
    assert recording.json["provenance"]["notes"]["calls"] == 1


def test_filters(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path / "r", "gemma2-a4", "decode", "f32", blocks=["sdpa", "rms_norm"], layers=[1]
    )
    assert {c["block"] for c in recording.checkpoints} == {"sdpa", "rms_norm"}
    paths = {c["path"] for c in recording.checkpoints}
    assert "model.norm" in paths
    assert {p for p in paths if "layers" in p} == {p for p in paths if "layers.1" in p}
    assert any("layers.1.self_attn" in p for p in paths)


def test_a_filtered_recording_equals_its_part_of_the_whole(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "a", "gemma2-a4", "padded-decode", "f32")
    part = recorded(tmp_path / "b", "gemma2-a4", "padded-decode", "f32", blocks=["attention"])
    for checkpoint in part.checkpoints:
        other = whole.by_id[checkpoint["id"]]
        for name, output in checkpoint["outputs"].items():
            assert output["error"] == other["outputs"][name]["error"]
            assert torch.equal(part.oracle(checkpoint, name), whole.oracle(other, name))


def test_without_oracle(tmp_path: Path) -> None:
    with pytest.warns(RecordWarning, match="without the float64 oracle"):
        recording = recorded(tmp_path / "r", "llama-a1", "whole", "f32", oracle=False)
    outputs = [o for c in recording.checkpoints for o in c["outputs"].values()]
    assert all(o["delta"] is None and o["error"] == 0 for o in outputs)
    assert recording.json["provenance"]["notes"]["oracle"] is False
    assert len(recording.of("decoder_layer")) == 3


def test_oracle_on_leaves_records_no_composites(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "llama-a1", "whole", "f32", oracle="leaves")
    kinds = {c["block"] for c in recording.checkpoints}
    assert not kinds & (COMPOSITES | {"add", "matmul", "softmax"})
    assert {"linear", "rms_norm", "sdpa", "rotary"} <= kinds
    assert all(c["outputs"]["out"]["delta"] for c in recording.of("linear"))


def test_without_internals(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", "gemma2-a4", "whole", "f32", internals=False)
    assert not any(":sdpa." in c["id"] for c in recording.checkpoints)
    assert [c["id"] for c in recording.of("softcap")] == ["lm_head:softcap#0"]


def test_recordings_nest(tmp_path: Path) -> None:
    model, other = tiny.build("llama-a1"), tiny.build("gemma2-a4")
    with record(model, tmp_path / "outer"):
        with record(model, tmp_path / "inner"):
            run(model, "decode")
        with record(other, tmp_path / "other"):
            run(other, "whole")
    outer, inner = Recording(tmp_path / "outer"), Recording(tmp_path / "inner")
    assert [c["id"] for c in outer.checkpoints] == [c["id"] for c in inner.checkpoints]
    assert [c["outputs"] for c in outer.checkpoints] == [c["outputs"] for c in inner.checkpoints]
    assert len(Recording(tmp_path / "other").of("decoder_layer")) == 4


def test_generate_inference_mode_and_collected_outputs(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    x = ids(model, tokens=6)
    expected = model.generate(x, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with record(model, tmp_path / "r"):
        generated = model.generate(x, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, expected)
    recording = Recording(tmp_path / "r")
    assert [c["params"]["logits_to_keep"] for c in recording.of("lm_head")] == [1, 1, 1]
    with record(model, tmp_path / "s"), torch.inference_mode():
        out = model(x, output_hidden_states=True, output_attentions=True)
    assert len(out.hidden_states) == 4
    assert len(out.attentions) == 3
    assert validate(tmp_path / "r") == validate(tmp_path / "s") == []


def test_another_thread_is_not_recorded(tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    with record(model, tmp_path / "r"):
        thread = threading.Thread(target=run, args=(model, "whole"))
        thread.start()
        thread.join()
        run(model, "whole")
    assert len(Recording(tmp_path / "r").of("lm_head")) == 1


def test_shared_weights_hold_the_whole_model(tmp_path: Path) -> None:
    shared = tmp_path / "weights-f32.safetensors"
    recorded(tmp_path / "a", "llama-a1", "whole", "f32", blocks=["rms_norm"], weights_path=shared)
    recording = recorded(tmp_path / "b", "llama-a1", "whole", "f32", weights_path=shared)
    assert validate(tmp_path / "a") == validate(tmp_path / "b") == []
    assert recording.json["files"]["weights"]["path"] == "../weights-f32.safetensors"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": ["sdqa"]}, "unknown block 'sdqa'"),
        ({"blocks": "sdpa"}, "give a list"),
        ({"layers": [-1]}, "layers holds -1"),
        ({"oracle": "maybe"}, "oracle is 'maybe'"),
        ({"masked_rows": "zero"}, "masked_rows is 'zero'"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with (
        pytest.raises(RecordError, match=text),
        record(torch.nn.Linear(1, 1), *asked(tmp_path, **options)),
    ):
        pass


def test_package_names() -> None:
    assert set(python_inspector.__all__) >= {"record", "save", "note", "verify"}
    assert callable(python_inspector.verify)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        python_inspector.nothing  # noqa: B018
