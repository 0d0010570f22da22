"""Recordings of some tokens: what is in them, and that it is what the whole recording has."""

from __future__ import annotations

import re
from pathlib import Path

import models
import pytest
import torch
from recorded import Recording, asked, ids

from python_inspector import record, tiny
from python_inspector.errors import RecordError
from python_inspector.recorder.asked import first_and_last
from python_inspector.recorder.rows import chosen_tokens, of_rows
from python_inspector.taps.calls import Block, only_out
from python_inspector.taps.options import layer_of
from python_inspector.trace.replay import Rerun, run_as_it_is

TOKENS, ROWS = 70, 6
MODELS = ("gemma2", "llama-a1", "zamba2")


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same prefill and decode step, recorded whole and with a few tokens."""
    folder = tmp_path_factory.mktemp("recordings")
    for part, options in (("whole", {}), ("rows", {"rows": ROWS, "whole_layers": (1,)})):
        model = tiny.build(request.param, torch.bfloat16)
        x = ids(model, 2, TOKENS)
        with record(model, *asked(folder / part, spread=2, **options)), torch.no_grad():
            cache = model(x[:, :-1], use_cache=True).past_key_values
            model(x[:, -1:], past_key_values=cache, use_cache=True)
    return folder


@pytest.mark.sampled
def test_the_rows_are_those_of_the_whole_recording(folder: Path) -> None:
    whole, rows = Recording(folder / "whole"), Recording(folder / "rows")
    at = torch.tensor(chosen_tokens(TOKENS - 1, ROWS))
    cut = 0
    for checkpoint in rows.checkpoints:
        other = whole.by_id[checkpoint["id"]]
        assert checkpoint["params"] == other["params"]
        for part in ("inputs", "outputs"):
            for key, ref in checkpoint[part].items():
                if "rows" in ref:
                    continue
                mine, theirs = (
                    r.raw(c[part][key]["tensor"]) for r, c in ((rows, checkpoint), (whole, other))
                )
                if mine.shape != theirs.shape:
                    theirs = theirs.index_select(ref["axes"].index("token"), at)
                    cut += 1
                assert torch.equal(mine, theirs), (checkpoint["id"], key)
    assert cut > 20


def test_layers_that_are_not_whole_have_no_block_that_mixes_tokens(folder: Path) -> None:
    whole, rows = Recording(folder / "whole"), Recording(folder / "rows")

    def kinds(recording: Recording, layer: int) -> set[str]:
        return {c["block"] for c in recording.checkpoints if layer_of(c["path"]) == layer}

    assert kinds(rows, 1) == kinds(whole, 1)
    mixing = {
        "sdpa",
        "attention",
        "kv_cache",
        "decoder_layer",
        "matmul",
        "mamba2_mixer",
        "ssd_scan",
    }
    assert kinds(rows, 0) and not kinds(rows, 0) & mixing
    assert {"embedding", "lm_head"} <= {c["block"] for c in rows.checkpoints}


def test_the_harness_passes_them(folder: Path) -> None:
    done = models.run("--fixture", str(folder / "rows"), "--device", "cpu")
    assert re.search(r"\d+ pass", done.stdout), done.stdout + done.stderr
    assert not re.search(r"\d+ fail", done.stdout), done.stdout + done.stderr


def test_chosen_tokens_are_the_ends_the_borders_of_tiles_and_more() -> None:
    assert chosen_tokens(4, 9) == [0, 1, 2, 3]
    chosen = chosen_tokens(512, 16)
    assert len(chosen) == 16 and chosen == sorted(set(chosen))
    assert {0, 511, 63, 64, 127, 128, 447, 448} <= set(chosen)
    assert chosen_tokens(512, 2) == [0, 511]


def test_what_is_no_function_of_single_tokens_is_refused() -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.mean(1, keepdim=True)

    x = torch.randn(1, 40, 8)
    block = Block("linear", {"x": (x, ("batch", "token", "channel"))}, only_out())

    def again(runner) -> Rerun:
        return runner(mean, (x,), {})

    taken = of_rows(block, again, 4)
    assert taken is not None and taken[1] is not None
    rerun = taken[1](run_as_it_is)
    with pytest.raises(RecordError, match="no function of single tokens"):
        taken[0].outputs(rerun.result, rerun.twin)


def test_the_layers_recorded_whole_by_default() -> None:
    gemma = tiny.build("gemma2")
    count = gemma.config.num_hidden_layers
    assert first_and_last(gemma) == sorted({0, 1, count - 1})
    assert first_and_last(tiny.build("llama-a1"))[0] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows": 1}, "rows is 1; at least 2"),
        ({"rows": 4, "chained": True}, "chained needs every token"),
        ({"rows": 4, "whole_layers": (99,)}, r"whole_layers holds 99, the model has \d+ layers"),
        ({"whole_layers": (0,)}, "goes with rows"),
    ],
)
def test_options_that_do_not_fit(options: dict, text: str, tmp_path: Path) -> None:
    model = tiny.build("llama-a1")
    with pytest.raises(RecordError, match=text), record(model, *asked(tmp_path / "r", **options)):
        pass


@pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")
def test_code_without_taps_is_recorded_in_whole_layers_only(tmp_path: Path) -> None:
    model = tiny.build("mixtral", torch.bfloat16)
    options = {"rows": 4, "whole_layers": (0,), "spread": 2, "bugs": False}
    with record(model, *asked(tmp_path / "r", **options)), torch.no_grad():
        model(ids(model, 1, 40))
    recording = Recording(tmp_path / "r")
    assert {layer_of(c["path"]) for c in recording.of("module")} == {0}
    assert {layer_of(c["path"]) for c in recording.of("linear")} >= {0, 1, None}
