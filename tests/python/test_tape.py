"""A bug in a run that was kept gives the bits that the code gives with it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_planted_bugs import again_of, glu, norm, outputs, randn
from torch.nn import functional

from python_inspector import check
from python_inspector.trace import tape, trials
from python_inspector.trace.blunders import of_a_failure, of_a_pass
from python_inspector.trace.bugs import Bug, bugs_of
from python_inspector.trace.given import Given
from python_inspector.trace.planting import same_values, with_bug
from python_inspector.trace.replay import Again, aside, run_as_it_is, run_lifted, run_watched
from python_inspector.trace.resolution import same_function
from python_inspector.trace.tape import Tape

torch.set_num_threads(1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = q.new_ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return weights @ v, weights.argmax(-1)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def other_forms(x: torch.Tensor) -> torch.Tensor:
    """What it does depends on the shape of what it computed."""
    y = x[:, : x.shape[1] - 1]
    z = torch.cat([y, y], 1).flatten(1)
    return z.mean(0) if z.shape[1] % 2 else z.sum(0)


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * 2j).exp().flatten(1)


def group_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, 4)


WHOLE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "norm": (norm, (randn(4, 64),)),
    "norm bf16": (norm, (randn(4, 64).bfloat16(),)),
    "glu": (glu, (randn(4, 64), randn(4, 64, seed=1))),
    "attention": (attention, tuple(randn(2, 3, 8, 16, seed=i) for i in range(3))),
    "attention of torch": (
        functional.scaled_dot_product_attention,
        tuple(randn(2, 3, 8, 16, seed=i).half() for i in range(3)),
    ),
    "rotary": (rotary, tuple(randn(3, 8, 16, seed=i) for i in range(3))),
    "embedding": (functional.embedding, (torch.arange(12) % 7, randn(9, 5))),
    "convolution": (functional.conv2d, (randn(2, 3, 9, 9), randn(4, 3, 3, 3), randn(4))),
    "group norm": (group_norm, (randn(3, 8, 5),)),
    "top k": (lambda x: x.softmax(-1).topk(3), (randn(5, 9),)),
    "other forms": (other_forms, (randn(5, 9),)),
    "complex": (turned, (randn(3, 8),)),
}


def of(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Again, Tape | None]:
    again = again_of(function, *args)
    with aside(), torch.no_grad():
        return again, Tape.of(again, outputs)


@pytest.mark.parametrize("name", WHOLE)
def test_bits_are_those_of_the_code(name: str) -> None:
    function, args = WHOLE[name]
    again, kept = of(function, *args)
    assert kept is not None
    seen, rules = list(kept.seen), list(of_a_failure())
    bugs = [bug for it in seen for bug in bugs_of(it, rules)]
    compared = 0
    with aside(), torch.no_grad():
        right = with_bug(again, outputs, run_as_it_is, None)
        assert right is not None
        assert all(same_values(kept.right[key], t) for key, (t, _) in right.items())
        for bug in bugs:
            found, expected = kept.with_bug(bug), with_bug(again, outputs, run_as_it_is, bug)
            if found is None:
                continue
            assert expected is not None, bug
            assert found.keys() == expected.keys()
            for key, (t, _) in expected.items():
                assert found[key].dtype == t.dtype and same_values(found[key], t), bug
            compared += 1
    assert compared > len(bugs) // 2 > 0


@pytest.mark.parametrize("name", WHOLE)
def test_float64_from_an_operation_on_tells_the_same_functions(name: str) -> None:
    function, args = WHOLE[name]
    again, kept = of(function, *args)
    assert kept is not None
    compared = 0
    with aside(), torch.no_grad():
        right = with_bug(again, outputs, run_lifted, None)
        assert right is not None
        bugs = [bug for seen in kept.seen for bug in bugs_of(seen, list(of_a_pass()))]
        none = [Bug(seen.site, "skip", "none", lambda it: it.run(), ()) for seen in kept.seen]
        for bug in [*none, *bugs]:
            found, expected = kept.in_float64(bug), with_bug(again, outputs, run_lifted, bug)
            if found is None or expected is None:
                continue
            mine = all(same_function(found[0][key], found[1][key]) for key in right)
            theirs = all(same_function(right[key][0], expected[key][0]) for key in right)
            assert mine == theirs, bug
            compared += 1
    assert compared or name in ("top k", "embedding"), name


def test_what_a_float64_run_does_otherwise_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def coded(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).to(torch.float8_e4m3fn).float() * 2

    _, kept = of(coded, randn(4, 8))
    assert kept is not None
    first, *_, last = [
        next(bugs_of(it, list(of_a_pass()))) for it in kept.seen if it.site.op == "mul"
    ]
    with aside(), torch.no_grad():
        assert kept.in_float64(first) is None and kept.in_float64(last) is not None
        _, kept = of(norm, randn(64, 64))
        assert kept is not None
        bug = next(bug for it in kept.seen for bug in bugs_of(it, list(of_a_pass())))
        assert kept.in_float64(bug) is not None
        monkeypatch.setattr(tape, "MOST_WIDE", 64)
        _, kept = of(norm, randn(64, 64))
        assert kept is not None and kept.in_float64(bug) is None


def test_other_values_of_an_argument() -> None:
    x, y, index = randn(5, 9), randn(9, 5).mT, torch.arange(5)

    def like(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) + 0 * y)[index]

    _, kept = of(like, x, y, index)
    assert kept is not None
    with aside(), torch.no_grad():
        for place, other in enumerate((x.roll(1), y * 2, index.flip(0))):
            given = [x, y, index]
            found = kept.with_values(given[place], other)
            given[place] = other
            assert found is not None and torch.equal(found["out.0"], like(*given))
        assert kept.with_values(x.clone(), x) is None  # it was not given that


def writes(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] = 1
    return y


def fills(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, 2, out=torch.empty_like(x))


def draws(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x * 2, 0.5)


def drops_out(x: torch.Tensor) -> torch.Tensor:
    x = x[None, None].half()
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def decides(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y if y.sum() > 0 else -y


@pytest.mark.parametrize("function", [writes, fills, draws, drops_out, decides])
def test_code_that_does_more_than_compute_has_none(function: Callable[..., Any]) -> None:
    assert of(function, randn(4, 8))[1] is None


def counts(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y / len(set(y.flatten().tolist()))


def outside(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return torch.from_numpy(y.numpy() + 1) * x


def by_pointer(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + y.data_ptr() % 2


def by_memory(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + torch.from_dlpack(y)


@pytest.mark.host  # numpy reads it
@pytest.mark.parametrize("function", [counts, outside, by_pointer, by_memory])
def test_code_that_reads_values_is_known(function: Callable[..., Any]) -> None:
    given = Given()
    with aside(), torch.no_grad():
        again_of(function, randn(4, 8))(run_watched(given))
    assert given.reads_values


def test_what_reads_values_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tape | None] = []
    of = Tape.of
    monkeypatch.setattr(trials.Tape, "of", lambda *args: made.append(of(*args)) or made[-1])
    x = randn(4, 8)
    check(by_pointer, by_pointer, x)
    assert made == []
    check(norm, norm, x)
    assert made[0] is not None


def test_what_would_be_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(norm, randn(64, 64))[1] is not None
    monkeypatch.setattr(tape, "MOST_BYTES", 4 * 64 * 64)
    assert of(norm, randn(64, 64))[1] is None


def test_a_result_of_another_form_is_left_to_the_code() -> None:
    again, kept = of(other_forms, randn(5, 9))
    assert kept is not None
    seen = next(kept.seen)
    narrower = Bug(seen.site, "skip", "", lambda it: it.run()[:, 1:], ())
    assert kept.with_bug(narrower) is None
    with aside(), torch.no_grad():
        found = with_bug(again, outputs, run_as_it_is, narrower)
    assert found is not None and found["out.0"][0].shape == (14,)
