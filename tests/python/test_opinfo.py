"""Kernels judged on PyTorch's own samples of an operation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from verdict_schemas import valid

from python_inspector.api.sealed import Sealed
from python_inspector.api.verdict import Verdict
from python_inspector.benchmarks import opinfo, samples
from python_inspector.benchmarks.stated import Stated, judged, status_of
from python_inspector.cli import plumbline
from python_inspector.errors import RecordError, UsageError
from tests.opinfo import sweep
from tests.opinfo.sweep import CATALOGUE, row

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

KERNEL = """
def rms_norm(x, shape, weight=None, eps=None):
    import torch
    wide = x.double()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    axes = list(range(-len(shape), 0))
    y = wide * (wide.pow(2).mean(axes, keepdim=True) + eps).rsqrt()
    return (y if weight is None {or_not} else y * weight).to(x.dtype)
"""


@pytest.mark.parametrize(("or_not", "status"), [("", "pass"), ("or len(shape) == 2", "fail")])
def test_a_kernel_on_all_samples(tmp_path: Path, or_not: str, status: str) -> None:
    """A weight that is left out in some of them shows there."""
    (tmp_path / "kernel.py").write_text(KERNEL.format(or_not=or_not))
    stated = opinfo.stated(
        "nn.functional.rms_norm", f"{tmp_path}/kernel.py:rms_norm", dtypes=["f32", "bf16"]
    )
    found = judged(stated, Sealed())
    assert status_of(found) == status, found
    assert {name.split()[0] for name in found} == {"f32", "bf16"}


@pytest.mark.parametrize("name", ["cat", "nn.functional.gelu", "argmax", "topk", "polar"])
def test_torch_by_itself(name: str) -> None:
    found = judged(opinfo.stated(name, most=3), Sealed())
    assert status_of(found) == "pass", found
    assert not any("Error" in verdict.reason for verdict in found.values()), found
    assert len({name.split()[0] for name in found}) > 1


@pytest.mark.parametrize("kind", CATALOGUE)
def test_torch_is_right_in_the_whole_catalogue(kind: str) -> None:
    """On one sample of three dtypes; `python -m tests.opinfo` takes more."""
    rows = [row(name, most=1, dtypes=("f32", "bf16", "i64")) for name in CATALOGUE[kind]]
    assert [str(it) for it in rows if it.alarms] == []
    assert sum(it.counts["pass"] for it in rows) > len(rows)


def test_what_is_wrong_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = Stated(lambda x: x.exp(), {"a": (torch.randn(9),)})
    other = Verdict("exp", "module", "fail", "off", {})
    monkeypatch.setattr(sweep.opinfo, "stated", lambda *args, **options: stated)
    monkeypatch.setattr(sweep, "judged", lambda *args, **options: {"a": other})
    assert row("exp", 1).alarms == ["a: fail: off"]
    monkeypatch.setattr(sweep, "judged", lambda *args, **options: {}["a"])
    assert row("exp", 1).alarms == ["raises KeyError: 'a'"]


def test_hard_inputs_of_samples(tmp_path: Path) -> None:
    text = "def softmax(x, dim):\n    return x.exp() / x.exp().sum(dim, keepdim=True)\n"
    (tmp_path / "kernel.py").write_text(text)
    stated = opinfo.stated("softmax", f"{tmp_path}/kernel.py:softmax", dtypes=["f32"])
    assert status_of(judged(stated, Sealed())) == "pass"
    keep = tmp_path / "kept"
    found = judged(stated, Sealed(), hard=["huge"], keep=keep)
    wrong = [it.status == "fail" for it in found.values()]
    assert sum(wrong) > 1
    kept = [bool(it.replay) for it in found.values()]
    assert kept == [i <= wrong.index(True) for i in range(len(kept))], "up to the first"
    (keep / "mine").touch()
    with pytest.raises(RecordError, match="holds mine, which is none of a case's files"):
        judged(stated, Sealed(), keep=keep)
    alone = judged(opinfo.stated("softmax", dtypes=["f32"], most=1), Sealed(), hard=["huge"])
    assert [len(it.cases) for it in alone.values()] == [2]


def test_where_torch_raises_nothing_is_judged() -> None:
    found = judged(Stated(lambda x: x.reshape(5), {"a": (torch.ones(3),)}), Sealed())
    assert found["a"].status == "unsupported"
    assert "the reference raises RuntimeError: shape '[5]' is invalid" in found["a"].reason


def test_samples_without_random_numbers_are_judged() -> None:
    """Of an operation that draws some where it is asked to."""
    found = judged(opinfo.stated("nn.functional.scaled_dot_product_attention", most=6), Sealed())
    statuses = {it.status for it in found.values()}
    assert statuses == {"pass", "unsupported"}
    assert any("draws random numbers" in it.reason for it in found.values())


def test_what_reads_beside_a_view_is_not_judged() -> None:
    view = torch.arange(20.0)[10:14]
    found = judged(Stated(lambda x: x.as_strided((3,), (4,)), {"a": (view,)}), Sealed())
    assert found["a"].status == "unsupported"
    assert "the reference raises RuntimeError: setStorage" in found["a"].reason


def test_random_numbers_are_refused_by_name() -> None:
    for candidate in (None, "nothing.py:kernel"):
        found = judged(opinfo.stated("normal", candidate), Sealed())
        assert status_of(found) == "unsupported"
        assert "normal draws random numbers" in found["all"].reason


def test_memory_that_nothing_wrote_is_refused() -> None:
    found = judged(opinfo.stated("new_empty_strided"), Sealed())
    assert found["all"].reason == "new_empty_strided writes nothing: what it returns is any memory"


def test_names_and_dtypes() -> None:
    with pytest.raises(UsageError, match=r"no operation 'sofmax'; did you mean softmax\?"):
        opinfo.stated("sofmax")
    with pytest.raises(UsageError, match="dtype f12: expected one of"):
        opinfo.stated("softmax", dtypes=["f12"])
    with pytest.raises(UsageError, match="softmax takes no i64"):
        opinfo.stated("softmax", dtypes=["i64"])


def test_samples_are_spread() -> None:
    assert samples.spread(3, 8) == [0, 1, 2]
    assert samples.spread(9, 3) == [0, 4, 8]
    assert samples.spread(9, 1) == [0]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["judge", "opinfo", "softmax", "--dtypes", "f32", "--most", "3"]
    monkeypatch.setattr("sys.argv", ["plumbline", *words, "--json"])
    assert plumbline.main() == 0
    assert len(valid(json.loads(capsys.readouterr().out), "judged")["inputs"]) == 3
    monkeypatch.setattr("sys.argv", ["plumbline", *words])
    assert plumbline.main() == 0
    assert capsys.readouterr().out.startswith("torch's softmax: pass (3 sets of inputs: 3 pass)")


def test_switches_of_the_process_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    samples.operations()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


def test_torch_by_itself_is_not_timed() -> None:
    with pytest.raises(UsageError, match="--time, --sanitize: torch by itself is in no process"):
        judged(opinfo.stated("cat", most=1), Sealed(time=True))
