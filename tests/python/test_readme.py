"""ci/readme: outputs in Markdown are renewed, or reported as out of date."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "ci" / "readme"


def readme(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def page(folder: Path, command: str, output: str) -> Path:
    file = folder / "page.md"
    file.write_text(f"a\n\n<!-- output of: {command} -->\n```text\n{output}```\n\nb\n")
    return file


def test_an_output_is_made_anew(tmp_path: Path) -> None:
    file = page(tmp_path, "echo 12 pass", "")
    assert readme("--check", file).returncode == 1
    assert readme(file).returncode == 0
    assert file.read_text() == page(tmp_path, "echo 12 pass", "12 pass\n").read_text()
    assert readme("--check", file).returncode == 0


def test_numbers_and_line_ends_may_differ(tmp_path: Path) -> None:
    assert readme("--check", page(tmp_path, "echo 12 pass", "345\npass\n")).returncode == 0


def test_other_words_are_out_of_date(tmp_path: Path) -> None:
    done = readme("--check", page(tmp_path, "echo 12 fail", "12 pass\n"))
    assert done.returncode == 1
    assert "page.md: out of date: echo 12 fail" in done.stderr


def test_a_command_that_is_missing_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    file = page(tmp_path, "no-such-program | cat", "12 pass\n")
    done = readme(file)
    assert done.returncode == 1
    assert "no-such-program" in done.stderr
    assert "12 pass" in file.read_text()
