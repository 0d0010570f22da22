"""Installed it is one package, `plumbline`; next to a checkout, one copy of every module."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = "pyproject.toml LICENSE README.md python_inspector reports fixtures/schema tests/configs"


def run(*words: object, cwd: Path, path: str = "", code: int = 0) -> str:
    """What a command prints that must end with this code; PYTHONPATH is `path`."""
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    environment.pop("PLUMB_FIXTURES", None)
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since setuptools leaves folders where it builds."""
    folder = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = run(*listed, *SOURCES.split(), cwd=ROOT).split("\0")
    subprocess.run(
        ["cp", "--parents", "-P", "-t", folder, *filter(None, files)], cwd=ROOT, check=True
    )
    return folder


def installed(folder: Path, *what: object) -> Path:
    """A fresh environment that finds the packages of this one behind its own, and has these."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    python = folder / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    (Path(own.strip()) / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    run(*pip, "--no-index", "--no-build-isolation", *what, cwd=folder)
    return python


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run(*pip, "-w", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("editable"), "-e", source)


def test_the_wheel_has_every_module_below_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith("plumbline_kernels-")
    folders = {name.split("/")[0] for name in names}
    assert {f for f in folders if not f.endswith(".dist-info")} == {"plumbline"}
    where = {"python_inspector/plumbline": "plumbline", "python_inspector": "plumbline/inspector",
             "reports": "plumbline/reports"}  # fmt: skip
    for folder, package in where.items():
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT / folder).as_posix()
            if not path.startswith("plumbline/"):
                assert f"{package}/{path}" in names
    assert "plumbline/inspector/data/recording.schema.json" in names
    assert "plumbline/reports/data/configs/Meta-Llama-3-8B.json" in names


USES = """
import sys, torch, plumbline
norm = torch.nn.LayerNorm(64)
x = torch.randn(4, 64)
assert plumbline.check(norm, like=norm, inputs=(x,), harness={harness!r}).passed
try:
    plumbline.check(lambda x: norm(x) * 1.01, like=norm, inputs=(x,), harness={harness!r})
except AssertionError as error:
    assert "python_inspector" not in str(error), error
else:
    raise SystemExit("a wrong kernel passes")
assert {{"check", "verify", "record"}} <= set(dir(plumbline)) & set(plumbline.__all__)
assert plumbline.tiny.__name__ == "plumbline.inspector.models.tiny"
import plumbline.reports.__main__
others = [name for name in sys.modules if name.split(".")[0] in ("python_inspector", "reports")]
assert not others, others
"""


@pytest.mark.nightly
def test_an_installation_judges_and_records(python: Path, harness: Path, tmp_path: Path) -> None:
    run(python, "-c", USES.format(harness=str(harness)), cwd=tmp_path)
    command = python.parent / "plumbline"
    words = ["record", "--model", "tiny:llama", "--layers", "0", "--tokens", "3", "--out", "r"]
    assert "verify it: " in run(command, *words, cwd=tmp_path)
    assert "1 recordings, 0 bad" in run(command, "validate", "r", cwd=tmp_path)
    assert "usage: reports render" in run(command, "report", "-h", cwd=tmp_path)


def test_modules_run_by_their_name_there(python: Path, tmp_path: Path) -> None:
    assert "reports 0" in run(python, "-m", "plumbline.reports", "--version", cwd=tmp_path)
    text = run(python, "-m", "plumbline.inspector", "show", "--checkpoint", "[", "x", cwd=tmp_path,
               code=3)  # fmt: skip
    assert text.startswith("inspector: x: is no folder here") and "Error" not in text
    code = (
        "import pickle, plumbline as p; from plumbline.reports.history.bisect import Plan;"
        "assert pickle.loads(pickle.dumps(p.Unsupported)) is p.Unsupported;"
        "assert pickle.loads(pickle.dumps(Plan)) is Plan"
    )
    run(python, "-c", code, cwd=tmp_path)


BOTH = """
import importlib, sys
for name in {names}:
    importlib.import_module(name)
import plumbline, plumbline.inspector, plumbline.reports.results, python_inspector, reports.results
from plumbline.inspector.api import verification as one
from python_inspector.api import verification as other
assert one is other and plumbline.Unsupported is python_inspector.Unsupported is one.Unsupported
assert plumbline.inspector is python_inspector and plumbline.reports is reports
assert plumbline.reports.results is reports.results
import plumbline.inspector.api.verdict, python_inspector.api.verdict
assert plumbline.Verdict is python_inspector.api.verdict.Verdict
tops = "plumbline", "python_inspector", "reports"
modules = {{id(m): m for n, m in sys.modules.items() if n.split(".")[0] in tops}}.values()
files = [m.__file__ for m in modules if m.__file__]
assert len(files) == len(set(files)), "a file was loaded twice"
print({{file.split("/python_inspector/")[0].split("/reports/")[0] for file in files}})
"""
ORDERS = [["plumbline", "python_inspector"], ["python_inspector", "plumbline"],
          ["reports.results", "plumbline.reports.results"], ["plumbline.reports", "reports"],
          ["plumbline.inspector.errors"], ["python_inspector.errors", "plumbline"]]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("names", ORDERS, ids=" ".join)
def test_a_checkout_on_the_path_goes_before_an_installation(
    python: Path, editable: Path, names: list[str], tmp_path: Path
) -> None:
    for each in (python, editable):
        printed = run(each, "-c", BOTH.format(names=names), cwd=tmp_path, path=str(ROOT))
        assert printed == f"{{'{ROOT}'}}\n"


def test_a_checkout_alone_knows_both_names(tmp_path: Path) -> None:
    names = ["python_inspector", "plumbline"]
    printed = run(
        sys.executable, "-S", "-c", BOTH.format(names=names), cwd=tmp_path,
        path=f"{ROOT}:{sysconfig.get_path('purelib')}",
    )  # fmt: skip
    assert printed == f"{{'{ROOT}'}}\n"


def test_an_editable_installation_knows_both_names(
    editable: Path, source: Path, tmp_path: Path
) -> None:
    code = BOTH.format(names=["plumbline"])
    assert run(editable, "-c", code, cwd=tmp_path) == f"{{'{source}'}}\n"
    late = f"import plumbline, sys; sys.path.insert(0, {str(source)!r})\n"
    assert run(editable, "-c", late + code, cwd=tmp_path) == f"{{'{source}'}}\n"


OTHERS = """
import python_inspector, reports, plumbline, plumbline.reports.results, sys
import plumbline.reports.beside
assert python_inspector.whose == reports.whose == "foreign"
assert not hasattr(reports, "results") and plumbline.check
import python_inspector.more
"""


def test_packages_of_other_projects_keep_their_names(
    python: Path, editable: Path, tmp_path: Path
) -> None:
    for name in ("python_inspector", "reports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('whose = "foreign"\n')
        (tmp_path / name / "more.py").touch()
    for each in (python, editable):
        run(each, "-c", OTHERS, cwd=tmp_path, path=str(tmp_path))
        later = "import plumbline\n" + OTHERS
        run(each, "-c", later, cwd=tmp_path, path=str(tmp_path))


def test_no_text_says_to_install_or_import_another_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "plumbline-kernels"
    other = re.compile(
        r"pip3? install (?:-\S+ )*['\"]?(plumbline|python[_-]inspector|reports|inspector)\b(?!-)"
    )
    listed = ["git", "ls-files", "*.md", "*.py", "*.sh", "*.yml", "*.yaml", "*.toml", "ci"]
    for name in run(*listed, cwd=ROOT).splitlines():
        file = ROOT / name
        if file.is_file() and file != Path(__file__):
            found = other.search(file.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{name}: {found and found[0]}"


NAMES_ITSELF = {"python_inspector/aliases.py", "python_inspector/plumbline/__init__.py",
                "reports/beside.py", "reports/speed/beside_ops.py"}  # fmt: skip
MODULE = re.compile(r"python_inspector(\.\w+)*|reports\.(commands|fleet|history|render|speed)\S*")
IN_RECORDINGS = {"python_inspector/recorder/provenance.py", "python_inspector/format/show.py"}


def test_nothing_inside_depends_on_what_the_package_is_called() -> None:
    """Imports are relative, and no string names a module by what it is called in a checkout."""
    for file in (*(ROOT / "python_inspector").rglob("*.py"), *(ROOT / "reports").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if path in NAMES_ITSELF:
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            own = [
                name for name in modules if name.split(".")[0] in ("python_inspector", "reports")
            ]
            assert not own, f"{path}:{node.lineno}: imports {own[0]}; make it relative"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = MODULE.fullmatch(node.value)
                assert not named or path in IN_RECORDINGS, (
                    f"{path}:{node.lineno}: {node.value!r}: see aliases.PACKAGE"
                )
