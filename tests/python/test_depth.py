"""The report's heat maps, and that what it reads is not held twice."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import chromium
import pytest
from deep_results import deep
from sample_results import checkpoint, write
from test_render import Elements, details, packed, render

from reports.json_lines import json_lines
from reports.render.depth import DEEP, layer_of

LISTED = "document.querySelectorAll('#list tbody tr').length > 0"


def layered(layers: int, block: str = "sdpa", **changed: Any) -> list[dict[str, Any]]:
    """A checkpoint per layer, of a model named after their number."""
    return [
        checkpoint(i, block=block, recording=f"deep-{layers}/whole-f32", **changed)
        for i in range(layers)
    ]


@pytest.mark.parametrize(
    ("words", "layer"),
    [
        ("model.layers.17.self_attn:sdpa#3", (17, "model.layers.17.")),
        ("model.layers.17#0", (17, "model.layers.17#")),
        ("transformer.h.5:attention#0", (5, "transformer.h.5:")),
        ("layers.2.experts.7.up_proj#0", (2, "layers.2.")),
        ("h.3#0", (3, "h.3#")),
        ("model.norm#17", None),
        ("model.rotary1.5x#0", None),
        ("(chain)", None),
    ],
)
def test_layers_are_known_by_their_ids(words: str, layer: tuple[int, str] | None) -> None:
    assert layer_of(words) == layer


def table(page: str) -> list[str]:
    """The text of the rows of the first map of layers."""
    found = re.search(r'<table class="layers".*?</table>', page, re.DOTALL)
    assert found
    return [Elements(row).words for row in re.findall(r"<tr>.*?</tr>", found[0], re.DOTALL)]


def test_a_deep_model_has_a_map_and_a_chart_of_each_block(tmp_path: Path) -> None:
    lines = layered(12) + layered(12, "linear")
    lines[3] = checkpoint(3, block="sdpa", recording="deep-12/whole-f32", error=1.0)
    lines[5]["outputs"] = []  # nothing was judged
    page, _ = render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    head, sdpa, linear = table(page)
    assert head == "layer " + " ".join(map(str, range(12)))
    assert sdpa == "sdpa 21 21 21 ✕ 21 ○ 21 21 21 21 21 21"
    assert linear == "linear" + " 21" * 12
    for block in ("sdpa", "linear"):
        assert f'aria-label="{block} of deep-12, cpu f32: error over layers"' in page
    assert "1 checkpoint failed</b>" in page[page.index('id="depth"') :]


def test_a_layer_shows_the_worst_of_its_calls(tmp_path: Path) -> None:
    lines = layered(12)
    for call, error in enumerate((2e-7, 4.4e-7, 1.5e-7), 1):
        again = checkpoint(4, block="sdpa", recording="deep-12/whole-f32", error=error)
        lines.append(again | {"checkpoint": f"model.layers.4.sdpa#{call}"})
    page, _ = render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    assert table(page)[1] == "sdpa" + " 21" * 4 + " 92" + " 21" * 7


def test_shallow_models_have_none_and_the_worst_of_deep_ones_comes_first(tmp_path: Path) -> None:
    shallow, _ = render(tmp_path, str(write(tmp_path / "a.jsonl", layered(DEEP - 1))))
    assert 'id="depth"' not in shallow and 'class="layers"' not in shallow
    lines = [*layered(DEEP), *layered(9, error=4e-7), *layered(10)]
    page, _ = render(tmp_path, str(write(tmp_path / "b.jsonl", lines)))
    names = re.findall(r'<div class="scroll"[^>]*aria-label="Layers of (deep-\d+)', page)
    assert names == ["deep-9", "deep-10", f"deep-{DEEP}"]


def test_a_cell_lists_its_checkpoints(tmp_path: Path) -> None:
    lines = layered(21) + layered(21, "linear")
    render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    try:
        with chromium.chromium() as tab:
            tab.open(f"file://{tmp_path / 'report.html'}", LISTED)
            tab.run("document.querySelectorAll('.layers tbody tr')[1].cells[3].click()")
            names = tab.run("[...document.querySelectorAll('#list b')].map((it) => it.textContent)")
            tab.run("document.querySelectorAll('#list button.row')[0].click()")
            tab.wait("document.querySelector('#list tr.open h4')")
            assert names == ["model.layers.2.linear#0"]  # not of layer 20
            assert "row=23" in tab.run("location.hash")
            assert tab.complaints == []
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_a_failure_has_a_heat_map_of_rows_and_columns(tmp_path: Path) -> None:
    lines = [checkpoint(number, error=1.0) for number in range(5)]
    del lines[1]["outputs"][0]["where"]["picture"]  # of an older harness
    for line, cells in zip(lines[2:], (["c0", "fx"], ["c0", "f"], ["f0"]), strict=True):
        line["outputs"][0]["where"]["picture"]["cells"] = cells
    page, _ = render(tmp_path, str(write(tmp_path / "results.jsonl", lines)))
    assert page.count('aria-label="linear cpu f32: error by row and column"') == 1
    pictures = [each["outputs"][0].get("picture") for each in details(page)]
    names = packed(page)[0]["names"]
    rows, columns, levels = pictures[0]
    assert ([names[rows[0]], rows[1]], [names[columns[0]], columns[1]]) == (
        ["token", 3],
        ["head", 2],
    )
    assert levels == [[12, 0], [15, 0], [0, 0]]
    assert pictures[1:4] == [None, None, None]
    lines[4]["block"] = "sdpa"
    page, _ = render(tmp_path, str(write(tmp_path / "results.jsonl", lines[4:])))
    assert "error by axis" in page and "error by row and column" not in page  # one row: a strip


def test_deep_results_are_results(tmp_path: Path) -> None:
    template = [(".sdpa", json.dumps(layered(1)[0])), (".linear", json.dumps(checkpoint(1)))]
    lines = list(deep(template, 100, layers=20))
    assert len({line["checkpoint"] for line in lines}) == 100
    page, _ = render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    assert len(table(page)) == 3


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    line = json.dumps({"type": "checkpoint", "text": "x" * 10_000}) + "\n"
    path.write_text(line * 2000)  # 20 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in json_lines(path)) == 2000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
