"""The report in a browser: headless Chromium opens it, searches, opens a row, runs nothing else.

How long a report of 100,000 checkpoints takes: see reports/README.md.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from chromium import NAMES
from sample_results import checkpoint, checkpoints, run_line, write
from test_render import HOSTILE, Elements, hostile

from reports.__main__ import main

COUNT = 10_000


def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    return found


def opened(page: Path, view: str = "") -> str:
    """The document after its script has run, which must not complain on the console."""
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
        f"file://{page}{view}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    folder = tmp_path_factory.mktemp("report")
    before = write(folder / "before.jsonl", checkpoints(COUNT))
    now = write(folder / "now.jsonl", checkpoints(COUNT, {4321: 30.0, 8765: 2.0}))
    page = folder / "report.html"
    assert main(["render", str(now), "--baseline", str(before), "--html", str(page)]) == 0
    return page


def test_ten_thousand_checkpoints_are_listed(large: Path) -> None:
    page = opened(large)
    words = Elements(page).words
    assert "10,000 of 10,000 checkpoints" in words
    assert page.count('class="row"') == 40
    assert words.index("model.layers.4321.linear#0") < words.index("model.layers.8765.attention#0")
    assert "Show more (9960 left)" in words
    assert '<option value="linear">linear</option>' in page


def test_search_finds_one_and_its_row_opens(large: Path) -> None:
    page = opened(large, "#q=layers.4321.+cpu&row=4321")
    words = Elements(page).words
    assert "1 of 10,000 checkpoints" in words
    assert page.count('class="row"') == 1 and 'aria-expanded="true"' in page
    listed = words[words.index("1 of 10,000 checkpoints") :]
    assert "--checkpoint 'model.layers.4321.linear#0'" in listed
    assert "c 2 · kappa 1.2" in listed and "Where: token 1" in listed
    assert "error by token (3, downwards) and head (2)" in listed and "<canvas" in page


def test_filters_and_order(large: Path) -> None:
    words = Elements(opened(large, "#status=fail")).words
    assert "1 of 10,000 checkpoints" in words
    by_change = opened(large, "#status=pass&sort=baseline")
    assert Elements(by_change[by_change.index('id="list"') :]).words.index("8765") < 120


def test_hostile_text_runs_nothing(tmp_path: Path) -> None:
    lines = [hostile(checkpoint(0, error=1.0), HOSTILE), checkpoint(1)]
    results = write(tmp_path / "results.jsonl", lines, run=run_line(command=HOSTILE))
    page = tmp_path / "report.html"
    assert main(["render", str(results), "--html", str(page)]) == 0
    document = opened(page, "#row=0")
    assert "<title>✕ 1 failed · Plumbline</title>" in document
    assert 'aria-expanded="true"' in document
    assert "onerror" not in {name for _, names in Elements(document).tags for name in names}
