"""Where a recording comes from: the hash of a model's weights, made during its run."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from python_inspector.format.payload import tensor_bytes
from python_inspector.recorder import provenance
from python_inspector.trace.replay import stubbed


class Later:
    """A thread that does its work when it is waited for."""

    def __init__(self, threads: int) -> None:
        self.result: Callable[[], Any] = lambda: None

    def submit(self, function: Callable[..., Any], *args: Any) -> Later:
        self.result = lambda: function(*args)
        return self

    def shutdown(self, wait: bool) -> None:
        pass


def test_weights_are_hashed_while_stubs_stand_for_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reruns of a composite put constants in place of its parts, in another thread."""
    parts = OrderedDict(a=torch.nn.Linear(4, 4), b=torch.nn.Linear(4, 2))
    model = torch.nn.Sequential(parts)
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(tensor_bytes(weight))
    monkeypatch.setattr(provenance, "BESIDE", 0)
    monkeypatch.setattr(provenance, "ThreadPoolExecutor", Later)
    promised = provenance.promised_weights_sha256(model)
    with stubbed(model, {"a": 1}):
        assert promised() == digest.hexdigest()
    assert provenance.weights_sha256(model) == digest.hexdigest()
