"""Values of the recording format."""

from __future__ import annotations

import json
import math
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch

from python_inspector.errors import FormatError
from python_inspector.format.recording import (
    DTYPES,
    ITEM_SIZES,
    TORCH_DTYPES,
    Checkpoint,
    OutputRef,
    TensorRef,
    as_number,
    checkpoint_id,
    dtype_name,
    plain,
)
from python_inspector.format.recording_text import recording_text


def test_dtype_names_and_sizes_are_torchs() -> None:
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == ITEM_SIZES
    assert all(dtype_name(dtype) == name for dtype, name in DTYPES.items())
    with pytest.raises(FormatError, match="complex64"):
        dtype_name(torch.complex64)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_numbers_are_strings_and_back(value: float) -> None:
    written = plain({"a": [value]})["a"][0]
    assert isinstance(written, str)
    assert repr(as_number(written)) == repr(value)


def test_bare_non_finite_numbers_cannot_be_written() -> None:
    assert '"inf"' in recording_text({"config": {"a": float("inf")}})


def test_only_three_strings_are_numbers() -> None:
    with pytest.raises(FormatError, match="Infinity"):
        as_number("Infinity")


def test_plain_makes_json_of_what_configs_hold() -> None:
    value = {
        "dtype": torch.bfloat16,
        "sizes": (1, 2),
        "names": {"b", "a"},
        "path": PurePosixPath("a/b"),
        "numpy": np.float32(0.5),
        "torch": torch.tensor(3),
        5: None,
    }
    assert json.loads(json.dumps(plain(value))) == {
        "dtype": "bfloat16",
        "sizes": [1, 2],
        "names": ["a", "b"],
        "path": "a/b",
        "numpy": 0.5,
        "torch": 3,
        "5": None,
    }


def test_plain_names_what_it_cannot_hold() -> None:
    with pytest.raises(FormatError, match=r"config\.rope\[1\] is a object"):
        plain({"rope": [1, object()]}, "config")


def test_plain_keeps_doubles_exactly() -> None:
    assert json.loads(json.dumps(plain(1e-5))) == 1e-5
    assert plain(0.1) == 0.1


def test_checkpoint_ids() -> None:
    assert checkpoint_id("model.norm", None, 0) == "model.norm#0"
    assert checkpoint_id("m.self_attn", "sdpa", 2) == "m.self_attn:sdpa#2"


def test_checkpoint_fields_stand_in_the_documented_order() -> None:
    output = OutputRef("t1", ("batch",), None, 0.0, TensorRef("t2", ("batch",)))
    checkpoint = Checkpoint(
        "m:f#0", "add", "m", "f", 0, 0, "eager", {}, {"a": TensorRef("t0", ("batch",))}, {},
        {"out": output},
    )  # fmt: skip
    entry = checkpoint.to_json()
    assert list(entry) == [
        "id", "block", "path", "function", "call", "step",
        "contract", "params", "inputs", "weights", "outputs",
    ]  # fmt: skip
    assert list(entry["outputs"]["out"]) == ["tensor", "delta", "error", "axes", "valid"]
    checkpoint.function = None
    assert "function" not in checkpoint.to_json()
