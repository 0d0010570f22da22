"""reports render: what the page and the Markdown say, whatever the results hold."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from harness_runs import ROOT, verify
from sample_results import chain, checkpoint, checkpoints, run_line, summary_line, write

from reports.__main__ import main
from reports.reader import read_runs
from reports.render import overview

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!--]]>&lt;b>\u2028$x_{1}^$ \\frac{ `|`` **b** [a](javascript:x) @you #1 'q' \"q\" \x07\ud800"
)


def render(tmp_path: Path, *words: str) -> tuple[str, str]:
    """The page and the Markdown."""
    html, markdown = tmp_path / "report.html", tmp_path / "report.md"
    assert main(["render", *words, "--html", str(html), "--markdown", str(markdown)]) == 0
    return html.read_text(encoding="utf-8"), markdown.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Tags and attributes' names of a page in order, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] == "script":
            self.scripts.append(data)
        elif not self.inside or self.inside[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def packed(page: str) -> list[Any]:
    """What the page's script unpacks: the index of checkpoints, then their details in chunks."""
    found = re.findall(r'<script type="text/plain"[^>]*>([^<]*)</script>', page)
    return [json.loads(zlib.decompress(base64.b64decode(text))) for text in found]


def details(page: str) -> list[Any]:
    """Of all checkpoints, in order."""
    return [each for chunk in packed(page)[1:] for each in chunk]


def first_screen(page: str) -> str:
    """What comes before the matrix."""
    return Elements(page[: page.index('<section id="matrix"')]).words


def test_samples_are_what_the_schema_says() -> None:
    schema = json.loads((ROOT / "harness" / "results.schema.json").read_text())
    lines = [*checkpoints(3, {2: 50.0}), chain(4)]
    for line in [run_line(), *lines, summary_line(lines)]:
        jsonschema.validate(line, schema)


def test_a_fault_and_a_loss_are_on_the_first_screen(tmp_path: Path) -> None:
    before = write(tmp_path / "before.jsonl", checkpoints(48))
    now = write(tmp_path / "now.jsonl", checkpoints(48, {3: 20.0, 17: 2.0}))
    page, markdown = render(tmp_path, str(now), "--baseline", str(before))
    screen = first_screen(page)
    assert "1 checkpoint failed" in screen and "1 other got worse" in screen
    assert "sdpa cpu · f32 1 of 2" in screen  # number 3: of sdpa, in f32
    assert "linear cpu · f16 error 2.0×, 1 checkpoint" in screen  # number 17
    assert "still passes, at 83.33 % of its limit" in screen
    for number, recording in ((3, "whole-f32"), (17, "whole-f16")):
        assert re.search(rf"{recording} --checkpoint 'model\.layers\.{number}\.\w+#0'", screen)
        assert re.search(rf"{recording} --checkpoint 'model\.layers\.{number}\.\w+#0'", markdown)
    assert "## 1 checkpoint failed, 1 checkpoint got worse" in markdown
    assert "2 worse; 0 better; 46 unchanged" in markdown


def test_a_failure_that_is_nondeterministic_says_both(tmp_path: Path) -> None:
    lines = [
        checkpoint(1), checkpoint(2, error=1e-3, determinism="D1"), checkpoint(3, error=1e-3),
        checkpoint(4, block="rotary", status="nondeterministic", determinism="D1"),
    ]  # fmt: skip
    page, markdown = render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    screen = first_screen(page)
    assert screen.count("2 of 3, 1 of them nondeterministic") == 2
    assert "**✕ linear** on cpu, f32: 2 of 3, 1 of them nondeterministic. " in markdown
    assert "**✕ rotary** on cpu, f32: 1 of 1 (nondeterministic). " in markdown
    repeats = [each["repeats"] for each in details(page)]
    assert repeats == ["bit by bit", "with other bits", "bit by bit", "with other bits"]


def test_a_small_loss_everywhere_is_named(tmp_path: Path) -> None:
    before = write(tmp_path / "before.jsonl", checkpoints(24))
    now = write(tmp_path / "now.jsonl", checkpoints(24, dict.fromkeys(range(24), 1.3)))
    page, markdown = render(tmp_path, str(now), "--baseline", str(before))
    words = "of 24 errors that changed 24 grew, 1.30× in the mean"
    assert f"cpu as a whole: {words}" in first_screen(page)
    assert "Nothing failed, errors grew on the whole" in first_screen(page)
    assert words in markdown and "## Nothing failed, errors grew on the whole" in markdown


def test_an_identical_run_has_nothing_to_say(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", checkpoints(24))
    page, markdown = render(tmp_path, str(results), "--baseline", str(results))
    assert "Nothing failed" in first_screen(page)
    assert "No compared checkpoint that passes lost accuracy" in first_screen(page)
    assert "24 compared; 0 worse; 0 better; 24 unchanged." in markdown


def test_a_baseline_of_this_project_is_one(tmp_path: Path) -> None:
    before = write(tmp_path / "before.jsonl", checkpoints(24, {5: 2.0}))
    baseline = tmp_path / "baseline.jsonl"
    assert main(["baseline", str(before), "--out", str(baseline)]) == 0
    now = [*checkpoints(24), checkpoint(99)]
    now[7] |= {"golden_sha256": "c" * 64, "output_sha256": "c" * 64}
    now[8] |= {"contract": "another", "output_sha256": "c" * 64}
    now[9]["device"] = "cuda:0"
    results = write(tmp_path / "now.jsonl", now)
    _, markdown = render(tmp_path, str(results), "--baseline", str(baseline))
    assert "21 compared; 0 worse; 1 better; 20 unchanged" in markdown
    assert "2 not compared: not in the baseline" in markdown
    assert "1 not compared: another recording" in markdown
    assert "1 not compared: another contract" in markdown


def test_all_that_the_report_promises_is_there(tmp_path: Path) -> None:
    lines = [*checkpoints(30, {4: 30.0}), *(chain(i) for i in range(100, 115))]
    page, markdown = render(tmp_path, str(write(tmp_path / "results.jsonl", lines)))
    found = Elements(page)
    for words in (
        "Matrix", "2 × κ 1.2 × max(reference 0.002, floor 0.001)", "98.44 %", "f32 acc24 eager",
        "Error against limit and reference", "Worst groups and gates", "Error over depth",
        "The 12 chains nearest to their limits of 15", "Octaves of scaled error", "Blind spots",
        "seen nowhere", "some processor", "12.2.0", "b" * 64, "Where the error is",
    ):  # fmt: skip
        assert words in found.words, words
    own = re.sub(r'xmlns(:xlink)?="[^"]*"', "", page)
    assert re.findall(r"https?:|src=|@import|url\((?!#)", own) == []
    assert markdown.count("```bash") == 1


def svgs(page: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", page, re.DOTALL)


def hostile(line: dict[str, Any], words: str) -> dict[str, Any]:
    """All free text of a checkpoint replaced."""
    line = json.loads(json.dumps(line))
    for key in ("block", "checkpoint", "recording", "fixture", "device", "dtype", "contract",
                "reason", "again"):  # fmt: skip
        line[key] = f"{words} {key}"
    for key in ("looser_contracts", "impl", "details", "features", "blind_to"):
        line[key] = [words]
    for output in line["outputs"]:
        output["name"] = words
        for gate in output["gates"]:
            gate |= {"name": words, "where": words, "derivation": {words: 1.0}}
        for group in output["informative"]["worst_groups"]:
            group |= {"family": words, "group": words}
        if output["where"]:
            output["where"] |= {"region": words, "worst": words}
            for error_map in output["where"]["maps"]:
                error_map["name"] = words
            output["where"]["picture"] |= {"row_axes": words, "column_axes": words}
    for row in line["chain"]["rows"] if line["chain"] else []:
        row |= {"checkpoint": f"{words}{row['checkpoint']}", "output": words, "diagnosis": words}
    return dict(line)


def test_text_of_recordings_stays_text(tmp_path: Path) -> None:
    pages = []
    for words in ("plain", HOSTILE):
        lines = [hostile(checkpoint(0, error=1.0), words), hostile(chain(1), f"{words}~")]
        run = run_line(version=words, command=words, started=words, devices=[words],
                       environment={words: words})  # fmt: skip
        results = write(tmp_path / "results.jsonl", lines, run=run)
        pages.append(render(tmp_path, str(results), "--baseline", str(results)))
    (plain, _), (page, markdown) = pages

    # Figures differ in their paths, not in what else they are made of.
    def bare(text: str) -> list[tuple[str, tuple[str, ...]]]:
        return Elements(re.sub(r"<svg .*?</svg>", "", text, flags=re.DOTALL)).tags

    assert bare(page) == bare(plain)
    assert len(svgs(page)) == len(svgs(plain)) > 3
    for svg in svgs(page):
        tags = {
            element.tag
            for element in ElementTree.fromstring(svg.replace("xlink:href", "href")).iter()
        }
        assert {tag.rsplit("}")[-1] for tag in tags} <= {
            "svg", "g", "path", "defs", "style", "text", "tspan", "use", "image", "clipPath",
            "rect",
        }  # fmt: skip
    names = packed(page)[0]["names"]
    assert any("<script>document.title='owned'</script>" in name for name in names)
    prose = re.sub(r"(?ms)^(`{3,})bash\n.*?^\1$", "", markdown)
    prose = re.sub(r"^</?details>(<summary>[\w ,]+</summary>)?$", "", prose, flags=re.MULTILINE)
    assert not re.search(
        r"<|\[a\]|@you|\*\*b|javascript://|\$x", prose.replace("**✕", "").replace("**▲", "")
    )
    assert "````" in markdown or "```" not in HOSTILE


@pytest.mark.parametrize("torn", ["", '{"type":"checkpoint","stat', "{\udcff"])
def test_a_run_that_was_cut_short_is_shown_with_a_notice(
    torn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write(tmp_path / "results.jsonl", checkpoints(24), summary=False)
    results.write_bytes(results.read_bytes() + torn.encode(errors="surrogateescape"))
    page, markdown = render(tmp_path, str(results))
    for text in (first_screen(page), markdown, capsys.readouterr().out):
        assert "results.jsonl was cut short: it holds 24 checkpoints and no summary" in text
    assert "24 pass" in markdown


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", lines := checkpoints(3), summary=False)
    summary = summary_line(lines, interrupted="SIGINT", exit_code=130)
    results.write_text(results.read_text() + json.dumps(summary) + "\n")
    page, _ = render(tmp_path, str(results))
    assert "SIGINT ended the run early, after 3 checkpoints" in first_screen(page)


def edited(path: str, value: object) -> str:
    """A result file's second line with one member replaced; path: keys and indices."""
    line: Any = checkpoint(1)
    at = line
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(run_line()) + "\n" + json.dumps(line) + "\n"


HEAD = '{"type": "baseline", "schema": 2, "device": "cpu", "runs": []}\n'
RUN = json.dumps(run_line()) + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "results.jsonl: is empty"),
        ("<html>\n", "results.jsonl:1: not JSON"),
        ('{"type": "baseline"}\n', ":1: type is 'baseline'; write the file with harness --json"),
        (json.dumps(run_line(schema=2)) + "\n", ":1: schema is 2, this reader knows 1"),
        (json.dumps(checkpoint(1)) + "\n", ":1: a checkpoint line comes before the run line"),
        (RUN + "{\n" + RUN, ":2: not JSON"),
        (edited("outputs.0.gates.1.limit", "<b>"),
         ":2: outputs[0].gates[1].limit is '<b>', needs a number"),
        (edited("outputs.0.conformance", 3), ":2: outputs[0].conformance is 3, needs an object"),
        (edited("impl.0", 7), ":2: impl[0] is 7, needs a string"),
        (edited("recording", None), ":2: lacks recording"),
        (edited("status", "fine"), ":2: status is 'fine', known are"),
        (RUN + json.dumps(summary_line([])) + "\n" + json.dumps(checkpoint(1)) + "\n",
         ":3: a checkpoint line comes behind the run's summary"),
        (RUN + "[" * 100_000 + "\n" + RUN, ":2: not JSON"),
    ],
)  # fmt: skip
def test_wrong_files_are_named_with_line_and_field(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(content)
    out = tmp_path / "report.html"
    assert main(["render", str(results), "--html", str(out)]) == 3
    assert words in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD + '{"recording": "r"}\n', ":2: a baseline's line lacks 'fused'"),
        ('{"type": "baseline"}\n', ":1: a baseline's line lacks 'schema'"),
        (RUN + "{}\n", ":2: type is None"),
    ],
)  # fmt: skip
def test_wrong_baselines_are_named(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.jsonl"
    baseline.write_text(content)
    results = str(write(tmp_path / "results.jsonl", checkpoints(3)))
    command = ["render", results, "--baseline", str(baseline), "--html", str(tmp_path / "x")]
    assert main(command) == 3
    assert f"baseline.jsonl{words}" in capsys.readouterr().err


def test_nothing_to_write_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["render", str(write(tmp_path / "results.jsonl", []))])
    assert ended.value.code == 2


def test_results_and_pages_do_not_overwrite_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write(tmp_path / "results.jsonl", checkpoints(3))
    before = results.read_bytes()
    assert main(["render", str(results), "--html", str(results)]) == 3
    assert f"{results}: would be overwritten" in capsys.readouterr().err
    assert results.read_bytes() == before
    page = str(tmp_path / "page")
    with pytest.raises(SystemExit) as ended:
        main(["render", str(results), "--html", page, "--markdown", page])
    assert ended.value.code == 2


def test_a_real_run_and_its_blind_spots(tmp_path: Path) -> None:
    run = verify(tmp_path, "--fixture", "fixtures/llama-a1/decode-bf16", "--device", "cpu",
                 "--mode", "both", "--repeat", "1")  # fmt: skip
    assert run.code == 0
    results = tmp_path / "results.jsonl"
    page, _ = render(tmp_path, str(results))
    assert "Nothing failed" in first_screen(page) and "Error over depth" in page
    summary = json.loads(results.read_text().splitlines()[-1])
    told = {(s["block"], s["feature"], s["blind"], s["seen"]) for s in summary["blind_features"]}
    spots = overview.blind_spots(read_runs([results]))
    assert {(s.block, s.feature, s.blind, s.seen) for s in spots} == told


def test_known_bugs_that_would_pass_are_blind_spots(tmp_path: Path) -> None:
    lines = [  # the harness says which pass, whatever the figures
        checkpoint(0, margins={"eps": 7.0, "window": "inf"}, passing_bugs=["eps"]),
        checkpoint(1, margins={"eps": 0.1}, passing_bugs=[]),
        checkpoint(2, margins={"eps": 0.1}),
        checkpoint(3),
    ]
    del lines[2]["passing_bugs"]  # of an older harness, and of one older still
    del lines[3]["passing_bugs"], lines[3]["margins"], lines[3]["determinism"]
    spots = overview.blind_spots(read_runs([write(tmp_path / "r.jsonl", lines)]))
    assert [(s.feature, s.blind, s.seen) for s in spots if s.feature.startswith("bug")] == [
        ("bug: eps", 1, 1)
    ]


def test_failures_of_a_known_bug_are_named(tmp_path: Path) -> None:
    bug = {"bug": "softcap left out", "differ": 0.0001, "ratio": 0.5}
    words = "tensor error 2, allowed 1; equals the block with a known bug, softcap left out"
    lines = [
        checkpoint(i, block="sdpa", dtype="bf16", error=1.0, reason=words,
                   known_bug=bug if i < 3 else None, diagnosis="rounds like none")
        for i in range(4)
    ]  # fmt: skip
    page, markdown = render(tmp_path, str(write(tmp_path / "now.jsonl", lines)))
    assert markdown.count("**✕ sdpa**") == 2  # with the bug, and without
    assert "3 of 4" in markdown and "softcap left out" in markdown
    first = details(page)[0]
    assert (first["bug"], first["rounds"]) == ("softcap left out", "rounds like none")


def test_a_baseline_of_another_machine_makes_nothing_worse(tmp_path: Path) -> None:
    on = {isa: run_line(devices=[f"cpu: some processor, {isa}"]) for isa in ("avx2", "avx512")}
    before = write(tmp_path / "before.jsonl", checkpoints(48), run=on["avx2"])
    now = write(tmp_path / "now.jsonl", checkpoints(48, {17: 2.0}), run=on["avx512"])
    page, markdown = render(tmp_path, str(now), "--baseline", str(before))
    for text in (first_screen(page), markdown):
        assert "got worse" not in text
    assert "1 not compared: another instruction set" in markdown
    assert "cpu of the older side is of avx2, of the newer of avx512" in markdown
    assert "of the newer of avx512, where rounding differs" in page


def test_a_summary_of_many_failures_is_one_screen(tmp_path: Path) -> None:
    lines = [checkpoint(n, error=9.0, block=f"block{n}") for n in range(30)]
    _, markdown = render(tmp_path, str(write(tmp_path / "r.jsonl", lines)))
    assert markdown.count("**✕ block") == 20  # groups
    seen = re.sub(r"<details>.*?</details>", "", markdown, flags=re.DOTALL)
    assert seen.count("**✕ block") == 4 and len(seen.splitlines()) <= 45
