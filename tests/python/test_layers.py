"""ci/layers.py on small trees: each rule is seen to object, and each exception to be granted."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "layers.py"


def check(root: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("kernels", "blocks", "harness", "tests", "python_inspector", "ci", "fixtures"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text("# What it is\n")
    return tmp_path


def add(tree: Path, path: str, text: str) -> None:
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_clean_tree_passes(tree: Path) -> None:
    add(tree, "kernels/ops/ops.h", "#pragma once\n#include <vector>\n")
    add(
        tree,
        "harness/judge/judge.cpp",
        '#include "kernels/ops/ops.h"\n#include <nlohmann/json.hpp>\n',
    )
    assert check(tree) == (0, "layers: 0 problems, 0 warnings\n")


def test_what_is_tracked_is_bounded(tree: Path) -> None:
    subprocess.run(["git", "init", "-q", tree], check=True)
    large, most = tree / "fixtures" / "large", 52 << 20
    for size, problems in ((most - 1000, 0), (most, 1)):
        with large.open("wb") as file:
            file.truncate(size)  # takes no room
        subprocess.run(["git", "-C", tree, "add", "."], check=True)
        code, output = check(tree)
        assert code == problems
        assert (f"bytes are tracked, at most {most}" in output) == bool(problems)


def test_a_folder_without_sources_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert "none of the folders" in done.stderr


BAD = {
    "include one layer up": (
        "kernels/core/a.cpp",
        '\n#include "blocks/sdpa.h"\n',
        'kernels/core/a.cpp:2: kernels includes "blocks/sdpa.h"',
    ),
    "include two layers up": ("blocks/a.h", '#include "tests/x.h"\n', "a layer above it"),
    "include a room up": (
        "harness/judge/a.cpp",
        '#include "harness/replay/x.h"\n',
        'a.cpp:1: judge includes "harness/replay/x.h", which is a room above it',
    ),
    "include a room up in kernels": (
        "kernels/core/a.h",
        '#include "kernels/ops/x.h"\n',
        'a.h:1: core includes "kernels/ops/x.h", which is a room above it',
    ),
    "file in no room": ("harness/a.cpp", "\n", "in none of the rooms"),
    "file in no room of kernels": ("kernels/a.cpp", "\n", "in none of the rooms of kernels/"),
    "include next to the file": ("blocks/a.h", '#include "b.h"\n', "not spelled from the root"),
    "include by a relative path": ("blocks/a.h", '#include "../kernels/b.h"\n', "from the root"),
    "vendor header": ("harness/judge/a.cpp", "#include <cuda_runtime.h>\n", "vendor header"),
    "vendor header in a folder": ("kernels/cpu/a.cpp", "#include <hip/hip_runtime.h>\n", "vendor"),
    "vendor header of shared GPU code": ("kernels/gpu/a.cu", "#include <cublasLt.h>\n", "vendor"),
    "vendor call": (
        "kernels/gpu/a.cu",
        "\nvoid f() { cudaFree(p); }\n",
        "a.cu:2: vendor name cuda",
    ),
    "HIP call": ("tests/kernels/core/a.cpp", "int x = hipSuccess;\n", "vendor name hipSuccess"),
    "driver type": ("kernels/core/a.cpp", "CUdevice d; \n", "vendor name CUdevice"),
    "driver call": ("kernels/core/a.cpp", "cuInit(0); \n", "vendor name cuInit"),
    "vendor macro": ("kernels/core/a.h", "#ifdef __CUDACC__\n#endif\n", "vendor name __CUDACC__"),
    "vendor name after a literal": ("blocks/a.cpp", 'auto x = f("a//", hipInit(0));\n', "hipInit"),
    "JSON in a header": ("harness/judge/a.h", "#include <nlohmann/json.hpp>\n", "in a header"),
    "CLI11 in a header": ("tests/a.h", "  # include <CLI/CLI.hpp>\n", "in a header"),
    "macro": ("kernels/core/a.cpp", "#pragma once\n#define MAX(a, b) a\n", "a.cpp:2: macro MAX"),
    "macro in a test": ("tests/a.cpp", "#define FOR_ALL x\n", "macro FOR_ALL"),
    "Catch2 switch outside tests": (
        "harness/judge/a.h",
        "#define CATCH_CONFIG_MAIN\n",
        "macro CATCH",
    ),
    "macro next to a guard": (
        "kernels/core/a.h",
        "#ifndef A\n#define A\n#define B\n#endif\n",
        "macro B",
    ),
    "namespace of a layer below": (
        "harness/io/a.h",
        "namespace plumb {\n}\n",
        "harness/io/a.h:1: namespace plumb; this folder's code belongs in plumb::harness",
    ),
    "namespace of another layer": (
        "blocks/a.cpp",
        "\nnamespace plumb::harness {\n}\n",
        "a.cpp:2: namespace plumb::harness; this folder's code belongs in plumb::blocks",
    ),
    "using a namespace in a header": (
        "kernels/core/a.h",
        "using namespace std;\n",
        "kernels/core/a.h:1: using namespace std in a header",
    ),
    "long C++ file": (
        "kernels/core/a.cpp",
        "//\n" * 501,
        "kernels/core/a.cpp:501: 501 lines, at most 500",
    ),
    "long Python file": ("python_inspector/cli/inspector.py", "#\n" * 501, "501 lines"),
    "long script": ("ci/do", "#!/bin/sh\n" + ":\n" * 500, "501 lines"),
    "long README": ("README.md", "a\n" * 151, "README.md:151: 151 lines, at most 150"),
    "wide README": ("README.md", "\n" + "a" * 101, "README.md:2: 101 columns, at most 100"),
    "wide code in the README": ("README.md", "```\n" + "a" * 101 + "\n```\n", "README.md:2: 101"),
    "wide table in the README": ("README.md", "|" + "a" * 100, "README.md:1: 101 columns"),
    "wide prose": ("ci/README.md", "```\n```\n" + "a" * 101, "ci/README.md:3: 101 columns"),
    "wide prose of the format": ("fixtures/format.md", "a" * 101, "format.md:1: 101 columns"),
    "no README": ("reports/reader.py", "\n", "reports/README.md:1: missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_violation_is_named(tree: Path, name: str) -> None:
    path, text, expected = BAD[name]
    add(tree, path, text)
    code, output = check(tree)
    assert code == 1
    assert expected in output
    assert output.endswith("layers: 1 problems, 0 warnings\n")


GOOD = {
    "include down": ("tests/a.cpp", '#include "harness/judge/x.h"\n#include "kernels/ops/ops.h"\n'),
    "include a room down": ("harness/chain/a.cpp", '#include "harness/io/b.h"\n'),
    "what external kernels include": ("kernels/plugin/a.h", '#include "kernels/plugin.h"\n'),
    "include within a room": ("harness/io/a.cpp", '#include "harness/io/b.h"\n'),
    "include within a layer": ("blocks/a.h", '#include "blocks/b.h"\n'),
    "commented include": (
        "kernels/core/a.h",
        '// #include "blocks/b.h"\n/*\n#include "tests/a.h"\n*/\n',
    ),
    "vendor name in prose": ("kernels/core/a.cpp", '// cudaMalloc\nauto s = "cudaMalloc";\n'),
    "vendor name in raw text": ("kernels/core/a.cpp", 'auto s = R"(\nhipFree "\n)";\n'),
    "device names": ("kernels/core/a.cpp", "int hip = 0, cuda = 1, hipster = 2, accumulate = 3;\n"),
    "vendor name where it belongs": ("kernels/cuda/a.cpp", "#include <cuda.h>\nCUdevice d;\n"),
    "neutral header": (
        "kernels/gpu/gpu_hip.h",
        "#include <hip/hip_runtime.h>\n#define X hipFree\n",
    ),
    "namespace of the layer": ("blocks/a.h", "namespace plumb::blocks {\nnamespace {\n}\n}\n"),
    "namespaces of the base": ("kernels/cpu/a.h", "namespace plumb::cpu {\n}\n"),
    "alias of a namespace": ("harness/io/a.cpp", "namespace fs = std::filesystem;\n"),
    "library's class declared": ("harness/cli/a.h", "namespace CLI {\nclass App;\n}\n"),
    "using a namespace in a source": ("tests/a.cpp", "using namespace std::literals;\n"),
    "include guard": ("kernels/core/a.h", "// Text.\n#ifndef A_H\n#define A_H\n#endif\n"),
    "Catch2 switch": ("tests/a.cpp", "#define CATCH_CONFIG_FAST_COMPILE\n"),
    "JSON in a source": ("harness/judge/a.cpp", "#include <nlohmann/json.hpp>\n"),
    "test data": ("tests/data/a.cpp", "#define X\n"),
    "README of 150 lines": ("README.md", ("a" * 100 + "\n") * 150),
    "wide table": ("blocks/README.md", "|" + "a" * 100 + "|\n"),
    "wide code": ("blocks/README.md", "```\n" + "a" * 101 + "\n```\n"),
    "output of a command": (
        "blocks/README.md",
        f"<!-- output of: harness {'a' * 100} -->\n```text\n" + "a\n" * 601 + "```\n",
    ),
    "format specification": ("fixtures/format.md", "a\n" * 4000),
    "file of 400 lines": ("kernels/core/a.cpp", "//\n" * 400),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_passes(tree: Path, name: str) -> None:
    add(tree, *GOOD[name])
    assert check(tree) == (0, "layers: 0 problems, 0 warnings\n")


def test_a_file_over_400_lines_is_a_warning(tree: Path) -> None:
    add(tree, "kernels/core/a.cpp", "//\n" * 401)
    code, output = check(tree)
    assert code == 0
    assert "kernels/core/a.cpp:401: warning: 401 lines" in output


RUN = "from python_inspector.cases import run\n"
A, B = "from python_inspector.format.a import x\n", "from python_inspector.format.b import x\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
BAD_PYTHON = {
    "import of a folder above": (
        {"format/a.py": "\n" + RUN, "cases/run.py": ""},
        "format/a.py:2: format imports python_inspector.cases.run, which is above it",
    ),
    "import of a name above": (
        {"taps/a.py": "from python_inspector.cases.run import x\n", "cases/run.py": ""},
        "taps/a.py:1: taps imports python_inspector.cases.run",
    ),
    "import above by dots": (
        {"trace/a.py": "from ..cases import run\n", "cases/run.py": ""},
        "trace/a.py:1: trace imports python_inspector.cases.run",
    ),
    "import above for types": (
        {"taps/a.py": FOR_TYPES + RUN, "cases/run.py": ""},
        "taps/a.py:3: taps imports python_inspector.cases.run",
    ),
    "import above in a function": (
        {
            "errors.py": "def f():\n    import python_inspector.cli.inspector\n",
            "cli/inspector.py": "",
        },
        "errors.py:2: errors imports python_inspector.cli.inspector",
    ),
    "import of the package from inside": (
        {"taps/a.py": "import python_inspector\n", "__init__.py": ""},
        "taps/a.py:1: taps imports python_inspector, which is above it",
    ),
    "module without a place": (
        {"odd.py": ""},
        "odd.py:1: odd has no place in PYTHON_LAYERS of python_inspector",
    ),
    "folder without a place": ({"odd/a.py": ""}, "odd/a.py:1: odd has no place"),
    "circle of two": (
        {"format/a.py": "\n" + B, "format/b.py": A},
        "format/a.py:2: import circle: python_inspector.format.a -> python_inspector.format.b -> "
        "python_inspector.format.a",
    ),
    "circle for types": (
        {"format/a.py": FOR_TYPES + B, "format/b.py": A},
        "format/a.py:3: import circle: python_inspector.format.a -> python_inspector.format.b",
    ),
    "circle of three": (
        {
            "format/a.py": "from . import c\n",
            "format/b.py": A,
            "format/c.py": "from .b import x\n",
        },
        "import circle: python_inspector.format.a -> python_inspector.format.c -> "
        "python_inspector.format.b -> python_inspector.format.a",
    ),
    "circle through a package": (
        {"taps/__init__.py": "from .a import x\n", "taps/a.py": "from . import y\n"},
        "taps/__init__.py:1: import circle: python_inspector.taps -> python_inspector.taps.a",
    ),
    "no Python": ({"cli.py": "\ndef\n"}, "cli.py:2: no Python"),
}


@pytest.mark.parametrize("name", BAD_PYTHON)
def test_a_wrong_import_of_python_is_named(tree: Path, name: str) -> None:
    files, expected = BAD_PYTHON[name]
    for path, text in files.items():
        add(tree, f"python_inspector/{path}", text)
    code, output = check(tree)
    assert code == 1
    assert expected in output
    assert output.endswith("layers: 1 problems, 0 warnings\n")


def test_every_include_circle_is_named(tree: Path) -> None:
    for room in ("kernels/core", "harness/judge"):
        add(tree, f"{room}/a.h", f'// "x"\n#include "{room}/b.h"\n')
        add(tree, f"{room}/b.h", f'#include <map>\n#include "{room}/a.h"\n')
    add(tree, "kernels/core/b.cpp", '#include "kernels/core/b.h"\n#include "kernels/core/a.h"\n')
    code, output = check(tree)
    assert code == 1
    for room in ("kernels/core", "harness/judge"):
        assert f"{room}/a.h:2: include circle: {room}/a.h -> {room}/b.h -> {room}/a.h" in output
    assert output.endswith("layers: 2 problems, 0 warnings\n")


def test_every_import_circle_is_named(tree: Path) -> None:
    add(tree, "python_inspector/format/a.py", B)
    add(tree, "python_inspector/format/b.py", A)
    add(tree, "python_inspector/taps/a.py", "from . import b\n")
    add(tree, "python_inspector/taps/b.py", "from . import a\n")
    code, output = check(tree)
    assert code == 1
    assert "format/a.py:1: import circle" in output
    assert "taps/a.py:1: import circle" in output
    assert output.endswith("layers: 2 problems, 0 warnings\n")


GOOD_PYTHON = {
    "import from below": {"format/a.py": "", "taps/a.py": A},
    "import within a folder": {"format/a.py": B, "format/b.py": "from ..errors import x\n"},
    "the package offers what is in it": {"__init__.py": FOR_TYPES + A, "format/a.py": ""},
    "a folder offers what is in it": {"taps/__init__.py": "from .a import x\n", "taps/a.py": ""},
    "import of others": {
        "errors.py": "import cli\nimport python_inspector_more.cli\n",
        "cli.py": "",
    },
    "import in text": {
        "errors.py": '"""from python_inspector.cli import inspector as cli"""\n',
        "cli.py": "",
    },
}


@pytest.mark.parametrize("name", GOOD_PYTHON)
def test_imports_of_python_from_below_pass(tree: Path, name: str) -> None:
    for path, text in GOOD_PYTHON[name].items():
        add(tree, f"python_inspector/{path}", text)
    assert check(tree) == (0, "layers: 0 problems, 0 warnings\n")
