"""ci/words.py on small trees: each kind of text is checked, code and names are not."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "words.py"


def check(root: Path, file: str, text: str) -> tuple[int, str]:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


BAD = {
    "a page": ("a.md", "x\nIt lies beyond.", 'a.md:2: "lies"; say: is'),
    "behind a listing": ("a.md", "```\n\n```\nAnew.", 'a.md:4: "Anew"; say: again'),
    "two words": ("a.md", "it goes on", 'a.md:1: "goes on"; say: continue'),
    "a comment of C++": ("a.h", "int a;  // told\n", 'a.h:1: "told"; say: given'),
    "a long comment of C++": ("a.cu", "/* x\n beside */", 'a.cu:2: "beside"; say: next to'),
    "a literal of C++": ("a.cpp", 'f("x",\n  "goes on");', 'a.cpp:2: "goes on"; say: continue'),
    "a raw literal": ("a.cuh", 'f(R"(a\n"b" stands)");', 'a.cuh:2: "stands"; say: is'),
    "a comment of Python": ("a.py", "x = 1  # nobody\n", 'a.py:1: "nobody"; say: the passive'),
    "a docstring": ("a.py", '"""A.\n\nB shall C."""\n', 'a.py:3: "shall"; say: must'),
    "a literal of Python": ("a.py", 'f("a stranger")\n', 'a.py:1: "stranger"; say: other'),
    "a formatted literal": ("a.py", "f(f'{a} lay {b}')\n", 'a.py:1: "lay"; say: is'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_word_is_named_with_a_better_one(name: str, tmp_path: Path) -> None:
    file, text, expected = BAD[name]
    code, output = check(tmp_path, file, text)
    assert code == 1
    assert output.startswith(expected)
    assert output.endswith("words: 1 problems in 1 files\n")


GOOD = {
    "a listing": ("a.md", "```\nit stands beside it\n```\n"),
    "code in a page": ("a.md", "`reports/beside.py`"),
    "code over two lines": ("a.md", "`cat\nbeside`"),
    "the command of an output": ("a.md", "<!-- output of: cat beside -->\n"),
    "parts of words": ("a.md", "besides, understands, implies"),
    "a noun": ("a.md", "a stand-in"),
    "a part of a path": ("a.py", "f('import reports.beside')  # a/beside.py\n"),
    "the CHANGELOG": ("CHANGELOG.md", "nobody told"),
    "a built page": ("build/a.md", "anew"),
    "code": ("a.cpp", "int told = 1'000 + lies * beside;"),
    "a name in a literal": ("a.cpp", '#include "a/beside.h"\nf("told", \'x\', "lay");'),
    "code in a comment": ("a.h", "// as `stand` says"),
    "Python": ("a.py", "told = lies['beside'].stood\n"),
    "a field": ("a.py", "f(f'a {told[0]} b')\n"),
    "another language": ("a.json", '"somebody lies"'),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_passes(name: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, *GOOD[name])
    assert code == 0, output
