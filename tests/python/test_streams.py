"""The relations "stream", where operands' values come late to a stream of its own, and "graph",
where they come after the capture. A stand-in has streams and graphs where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from batch_variance import normal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from python_inspector import Verdict, WrongError, check, invariant
from python_inspector.api import streams, trial

X = normal(5, 256)


def broken(kernel: Callable[..., Any], inputs: Any) -> Verdict:
    with pytest.raises(WrongError) as raised:
        invariant(kernel, inputs, "stream")
    verdict = raised.value.verdict
    assert verdict.to_json()["worst"]["gate"] == "stream"
    return verdict


class Queue(TorchDispatchMode):
    """Keeps what was in each tensor that is copied to: all that another stream has seen by now."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.before[args[0].data_ptr()] = args[0].clone()
        return func(*args, **(kwargs or {}))


class Streams:
    """What torch.cuda has of them; `calls` are those in their order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._queue: Queue | None = None

    def Stream(self, device: torch.device) -> Any:  # noqa: N802 -- as torch.cuda calls it
        self.calls.append(f"Stream {device}")
        return device

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        assert stream == X.device
        self.calls.append("begin")
        with Queue() as self._queue:
            yield
        self.calls.append("end")
        self._queue = None

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("wait")

    def of_the_default_stream(self, x: Tensor) -> Tensor:
        """What is in a tensor for work that does not wait for the stream."""
        return x if self._queue is None else self._queue.before.get(x.data_ptr(), x)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    monkeypatch.setattr(trial, "device_with_streams", lambda tensors: tensors[0].device)
    monkeypatch.setattr(streams, "_SIDE", 8)
    return found


def test_operands_come_late_to_another_stream(made: Streams) -> None:
    seen: list[Any] = []
    x, ids = X.clone(), torch.arange(1, 6, device=X.device)

    def kernel(x: Tensor, ids: Tensor, number: int) -> Tensor:
        seen.extend((x, ids, number, *map(made.of_the_default_stream, (x, ids))))
        return x * 2

    called = streams.on_another_stream(kernel, x.device)
    assert torch.equal(called(x, ids, 3), X * 2)
    assert made.calls == ["wait", f"Stream {X.device}", "begin", "end", "wait"]
    assert seen[0] is x and seen[1].tolist() == [1, 2, 3, 4, 5] and seen[2] == 3
    assert bool(seen[3].isnan().all()) and not bool(seen[4].any())


def test_a_kernel_that_does_not_wait_is_found(made: Streams) -> None:
    verdict = broken(lambda x: made.of_the_default_stream(x) * 2, X)
    assert "stream: out [0, 0] is " in verdict.reason
    assert ", nan on another stream: other bits in 1280 of 1280 elements" in verdict.reason
    assert "(2 of 2 calls differ)" in verdict.reason


def test_a_second_operand_comes_late_too(made: Streams) -> None:
    late = lambda x, ids: x[made.of_the_default_stream(ids)]  # noqa: E731
    assert "[0, 0]" in broken(late, (X, torch.tensor([4, 3], device=X.device))).reason


def test_what_a_kernel_raises_on_another_stream_is_a_fault(made: Streams) -> None:
    def kernel(x: Tensor) -> Tensor:
        if made.calls[-1:] == ["begin"]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x * 2

    assert "RuntimeError: operation not permitted when stream" in broken(kernel, X).reason


def test_a_kernel_that_waits_passes(made: Streams) -> None:
    verdict = invariant(lambda x, w: x * w, (X, normal(256).to(X.device)), ("repeat", "stream"))
    assert "repeat 2, stream 2" in verdict.reason and not verdict.not_judged
    assert made.calls.count("begin") == 2


@pytest.mark.usefixtures("harness")
def test_check_tries_it_too(made: Streams) -> None:
    options: Any = {"like": lambda x: x * 2, "inputs": X, "relations": "stream", "explain": False}
    assert "stream 2" in check(lambda x: x * 2, **options).reason
    with pytest.raises(WrongError, match=r"stream: out \[0, 0\] is"):
        check(lambda x: made.of_the_default_stream(x) * 2, **options)


def on_the_default_stream(x: Tensor) -> Tensor:
    with torch.cuda.stream(torch.cuda.default_stream(x.device)):
        return x * 2


@pytest.mark.skipif(X.device.type == "cpu", reason="the CPU has no streams")
def test_a_kernel_on_the_default_stream_of_a_gpu_is_found() -> None:
    assert "stream: " in broken(on_the_default_stream, X).reason
    assert "stream 2" in invariant(lambda x: x * 2, X).reason


class Graphs(Streams):
    """Captures the operations of a call, and replays them on what their operands hold then."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Any] = []
        self.in_capture = False

    def CUDAGraph(self) -> Any:  # noqa: N802 -- as torch.cuda calls it
        return self

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        assert graph is self and stream == X.device
        captured = self.captured = []

        class Capture(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                result = func(*args, **(kwargs or {}))
                captured.append((func, args, kwargs or {}, result))
                return result

        self.in_capture = True
        with Capture():
            yield
        self.in_capture = False

    def replay(self) -> None:
        self.calls.append("replay")
        for func, args, kwargs, result in self.captured:
            made = func(*args, **kwargs)
            if made.data_ptr() != result.data_ptr():
                result.copy_(made)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    monkeypatch.setattr(trial, "device_with_graphs", lambda tensors: tensors[0].device)
    return found


def test_a_kernel_that_may_be_captured_passes(graphs: Graphs) -> None:
    verdict = invariant(lambda x, w: (x * w).tanh(), (X, normal(256).to(X.device)), "graph")
    assert "graph 2" in verdict.reason and not verdict.not_judged
    assert graphs.calls.count("replay") == 2

    def in_place(x: Tensor) -> None:
        x.mul_(2)

    assert "graph 2" in invariant(in_place, X, "graph").reason


def test_a_kernel_that_keeps_what_it_made_is_found(graphs: Graphs) -> None:
    kept: dict[int, Tensor] = {}

    def kernel(x: Tensor) -> Tensor:
        if graphs.in_capture:
            return kept[x.data_ptr()]
        kept[x.data_ptr()] = x * 2
        return kept[x.data_ptr()]

    with pytest.raises(WrongError, match="replayed from a graph: other bits in 1280 of 1280"):
        invariant(kernel, X, "graph")


def test_what_a_capture_refuses_is_a_fault(graphs: Graphs) -> None:
    def kernel(x: Tensor) -> Tensor:
        if graphs.in_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x * 2

    with pytest.raises(WrongError, match="not permitted when stream is capturing, replayed from"):
        invariant(kernel, X, ("repeat", "graph"))


def test_without_graphs_it_is_named_and_not_among_all() -> None:
    verdict = invariant(lambda x: x * 2, X.cpu(), ("repeat", "stream", "graph"))
    assert [it.partition(":")[0] for it in verdict.not_judged] == ["stream", "graph"]
    assert "of a device with graphs" in verdict.not_judged[1]
    assert not any("graph" in it for it in invariant(lambda x: x * 2, X.cpu()).not_judged)


@pytest.mark.skipif(X.device.type == "cpu", reason="the CPU has no graphs")
def test_kernels_of_a_gpu_are_captured() -> None:
    assert "graph 2" in invariant(lambda x: (x * 2).softmax(-1), X, ("stream", "graph")).reason
    with pytest.raises(WrongError, match="graph: the function raised"):
        invariant(lambda x: x * x.sum().item(), X, "graph")
