#!/usr/bin/env python3
"""Checks the structure of the source tree: layers and circles of C++ and Python, namespaces, vendor
names, macros, private headers, sizes.

usage: ci/layers.py [ROOT]

Prints a line for each violation, "path:line: what is wrong"; the exit code is 1 when there is one.
The rules are the tables and `check_*` functions below; each exception is listed with its reason.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# An #include may name its own layer or one further left; "up" is to the right.
LAYERS = ("kernels", "blocks", "harness", "tests")
# The rooms of a layer, by the same rule: `replay` may include `judge`, never the other way.
ROOMS = {
    "kernels": (
        "core", "ops", "gradients", "plugin", "oracle", "cpu", "gpu", "cuda", "hip", "emu",
        "portable", "opencl", "vulkan",
    ),
    "harness": (
        "io", "process", "remote", "recording", "judge", "result", "execution", "trace", "referee",
        "ops", "replay", "model", "chain", "run", "report", "bench", "capi", "cli",
    ),
}  # fmt: skip
# What is in no room: the header that external kernels include, below all, and what opens every
# device, above all.
OUTSIDE = {"kernels/plugin.h": -1, "kernels/devices.cpp": len(ROOMS["kernels"])}
# The namespace of a layer; kernels/ is the base and has more of them (plumb, plumb::cpu, ...).
NAMESPACES = {"blocks": "plumb::blocks", "harness": "plumb::harness"}
FOREIGN_NAMESPACES = {"CLI"}  # to declare a class of it in a header that may not include it
TOP_FOLDERS = (*LAYERS, "python_inspector", "reports", "fixtures", "ci")

CPP_HEADERS = {".h", ".hpp", ".cuh"}
CPP_SUFFIXES = CPP_HEADERS | {".cpp", ".cc", ".cu", ".hip"}
SOURCE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake", ".cl", ".comp"}
SKIPPED_FOLDERS = {"build", "__pycache__", "data"}

MAX_LINES, WARN_LINES = 500, 400
# Bytes of all tracked files: a clone is small, and so is what a release unpacks to.
MAX_TREE = 52 << 20
# Markdown. The root's README is one screen for each reader; a page of a folder is for a reader in a
# hurry. Tables and code may be wider: a reader of the file itself cannot wrap them.
MAX_COLUMNS, MAX_README_LINES = 100, 150
OUTPUT = re.compile(r"<!-- output of: [^\n]+ -->\n```text\n.*?```\n", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

# The vendors' own; their replacement on the emulated GPU, which consists of vendor names and
# macros; and a sample of plain vendor code.
EMULATED_WORDS = ("kernels/emu/cuda/", "tests/plugin/plain_cuda")
VENDOR_FOLDERS = ("kernels/cuda/", "kernels/hip/", *EMULATED_WORDS)
# The language of kernels that OpenCL C, GLSL and C++ have in common, and its readers.
PORTABLE_LANGUAGE = (
    "kernels/portable/portable.h",
    "kernels/portable/arguments.h",
    "kernels/portable/host_arguments.h",
    "kernels/portable/emulated.cu",
)
# Where vendor names become neutral ones.
NEUTRAL_HEADER = re.compile(r"kernels/gpu/gpu[^/]*\.(h|cuh)")
_VENDOR = (
    "cuda|cublas|cublasLt|cudnn|curand|cufft|cusparse|nccl|nvml|nvrtc|"
    "hip|hipblas|hipblaslt|miopen|rccl|rocblas"
)
VENDOR_HEADER = re.compile(
    rf"(?:{_VENDOR}|cooperative_groups|cutlass|mma|rocwmma|hiprtc)(?=[_./A-Z0-9])"
)
VENDOR_NAME = re.compile(
    rf"\b(?:(?:{_VENDOR})[A-Z_]\w*"  # cudaMalloc, hipblasCreate, cuda_runtime_api
    r"|cu[A-Z]\w*|CU_\w+|CU[a-z]\w*"  # the driver API: cuInit, CU_STREAM_DEFAULT, CUdevice
    r"|(?:CUDA|CUBLAS|HIP|HIPBLAS|ROCBLAS)_\w+"
    r"|__(?:CUDA|HIP|nv_|hip_)\w+)"
)
PRIVATE_HEADER = re.compile(r"(?:nlohmann|CLI)/")  # slow to compile, and no caller's business

# Catch2's own switches have to be macros.
TEST_MACRO = re.compile(r"CATCH_\w+")

# Symbols that the compiler calls by name, one per size; a context switch per platform; the ops,
# their formulas and layouts, which would be repeated for each device and again as names; functions
# of a library that are found by their names.
MACRO_FILES = (
    *PORTABLE_LANGUAGE,
    "kernels/portable/formula_code.cpp",
    "kernels/opencl/opencl_api.h",
    "kernels/opencl/opencl_api.cpp",
    "kernels/ops/layouts.h",
    "kernels/ops/wholes.h",
    "kernels/ops/layouts.cpp",
    "kernels/emu/tsan_entry.cpp",
    "kernels/emu/fiber.cpp",
    "kernels/vulkan/vulkan_api.h",
    "kernels/vulkan/vulkan_api.cpp",
    "kernels/ops/device_ops.h",
    "kernels/ops/op_id.h",
    "kernels/ops/table_rows.h",
    "kernels/ops/samples.cpp",
    "kernels/ops/formulas.h",
    "kernels/ops/reductions.h",
)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
NAMESPACE = re.compile(r"^[ \t]*(?:inline[ \t]+)?namespace[ \t]+([\w:]+)[ \t]*\{", re.MULTILINE)
USED_NAMESPACE = re.compile(r"^[ \t]*using[ \t]+namespace[ \t]+([\w:]+)", re.MULTILINE)
GUARD = re.compile(
    r"\A\s*#[ \t]*ifndef[ \t]+(\w+)\s*\n[ \t]*#[ \t]*define[ \t]+\1[ \t]*$", re.MULTILINE
)
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)

# A Python package's folders and modules: one may import itself and what is listed further left;
# "up" is to the right. The package itself (__init__) is a member like the others.
PYTHON_LAYERS = {
    "python_inspector": (
        "version", "aliases", "errors", "exit_codes", "usage", "named_code", "interrupts",
        "needs", "versions", "effort", "heap", "described", "arrays", "foreign", "compatibility",
        "native", "quantised", "format", "models", "trace", "taps", "recorder", "api",
        "benchmarks", "engines", "cases", "__init__", "cli", "__main__", "plumbline",
    ),
    "reports": (
        "__init__", "beside", "terminal", "files", "decode", "json_lines", "results", "reader",
        "history", "render", "speed", "fleet", "commands", "__main__",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    path: str
    line: int
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'' if self.fatal else 'warning: '}{self.text}"


def blank(match: re.Match[str]) -> str:
    """A comment or literal without its text, line feeds kept so that line numbers stay right."""
    return "\n" * match[0].count("\n") or (" " if match[0].startswith("/") else '""')


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def comments_blanked(text: str) -> str:
    """C++ without comments; literals stay, so that includes can still be read."""
    return NO_CODE.sub(lambda m: blank(m) if m[0].startswith("/") else m[0], text)


def check_includes(path: str, text: str) -> Iterator[Problem]:
    own = path.split("/")[0]
    neutral = path.startswith(VENDOR_FOLDERS) or NEUTRAL_HEADER.fullmatch(path)
    for match in INCLUDE.finditer(text):
        line, quoted, name = (
            line_of(text, match.start(1 if match[1] else 2)),
            match[1],
            match[1] or match[2],
        )
        layer = name.split("/")[0]
        rooted = layer in LAYERS and "/" in name
        unrooted = path.startswith((*EMULATED_WORDS, *PORTABLE_LANGUAGE))
        if quoted and not rooted and not unrooted:
            yield Problem(path, line, f'"{name}" is not spelled from the root, as "{own}/..."')
        elif quoted and rooted and LAYERS.index(layer) > LAYERS.index(own):
            yield Problem(
                path,
                line,
                f'{own} includes "{name}", which is a layer above it ({" < ".join(LAYERS)})',
            )
        if VENDOR_HEADER.match(name) and not neutral:
            yield Problem(
                path,
                line,
                f"vendor header <{name}> outside kernels/gpu/gpu*.h, kernels/cuda, kernels/hip",
            )
        if PRIVATE_HEADER.match(name) and Path(path).suffix in CPP_HEADERS:
            yield Problem(
                path, line, f"<{name}> in a header; it may be included by .cpp files only"
            )


def room_of(path: str) -> int | None:
    """The index of a file's room in the ROOMS of its layer; None for what is in no room."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    layer, _, rest = path.partition("/")
    room, _, name = rest.partition("/")
    rooms = ROOMS.get(layer, ())
    return rooms.index(room) if name and room in rooms else None


def check_rooms(path: str, text: str) -> Iterator[Problem]:
    layer = path.partition("/")[0]
    rooms = ROOMS.get(layer)
    if rooms is None:
        return
    own = room_of(path)
    if own is None:
        yield Problem(path, 1, f"in none of the rooms of {layer}/ ({', '.join(rooms)})")
        return
    if NEUTRAL_HEADER.fullmatch(path):  # it chooses among vendors, of which the emulator is one
        return
    for match in INCLUDE.finditer(text):
        included = match[1] or ""
        room = room_of(included) if included.startswith(f"{layer}/") else None
        if room is not None and room > own:
            yield Problem(
                path,
                line_of(text, match.start(1)),
                f'{path.split("/")[1]} includes "{included}", which is a room above it '
                f"({' < '.join(rooms)})",
            )


def check_vendor_names(path: str, code: str) -> Iterator[Problem]:
    """code: without comments, literals and includes."""
    if path.startswith(VENDOR_FOLDERS) or NEUTRAL_HEADER.fullmatch(path):
        return
    for match in VENDOR_NAME.finditer(code):
        line = line_of(code, match.start())
        yield Problem(
            path,
            line,
            f"vendor name {match[0]} outside kernels/gpu/gpu*.h, kernels/cuda, kernels/hip",
        )


def check_macros(path: str, code: str) -> Iterator[Problem]:
    if NEUTRAL_HEADER.fullmatch(path) or path in MACRO_FILES or path.startswith(EMULATED_WORDS):
        return
    guard = GUARD.search(code)
    for match in DEFINE.finditer(code):
        if guard and match[1] == guard[1]:
            continue
        if path.startswith("tests/") and TEST_MACRO.fullmatch(match[1]):
            continue
        yield Problem(
            path,
            line_of(code, match.start(1)),
            f"macro {match[1]}; write a function, constant or template",
        )


def check_namespaces(path: str, code: str) -> Iterator[Problem]:
    own = NAMESPACES.get(path.split("/")[0])
    for match in NAMESPACE.finditer(code) if own else ():
        if match[1] not in (own, *FOREIGN_NAMESPACES):
            line = line_of(code, match.start(1))
            yield Problem(path, line, f"namespace {match[1]}; this folder's code belongs in {own}")
    if Path(path).suffix in CPP_HEADERS:
        for match in USED_NAMESPACE.finditer(code):
            line = line_of(code, match.start(1))
            yield Problem(path, line, f"using namespace {match[1]} in a header")


def check_size(path: str, text: str) -> Iterator[Problem]:
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield Problem(path, lines, f"{lines} lines, at most {MAX_LINES}: split it by subject")
    elif lines > WARN_LINES:
        yield Problem(path, lines, f"{lines} lines, {MAX_LINES} is the limit", fatal=False)


def check_tracked(root: Path) -> Iterator[Problem]:
    if not (root / ".git").exists():  # an unpacked archive
        return
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True)
    names = listed.stdout.decode().rstrip("\0").split("\0")
    size = sum(file.lstat().st_size for name in names if (file := root / name).is_file())
    if size > MAX_TREE:
        yield Problem(
            ".", 1, f"{size} bytes are tracked, at most {MAX_TREE}: recordings that take seconds "
            "from a seed need not be committed (python_inspector/cases/made_cases.py)"
        )  # fmt: skip


def check_cpp(path: str, text: str) -> Iterator[Problem]:
    without_comments = comments_blanked(text)
    yield from check_includes(path, without_comments)
    yield from check_rooms(path, without_comments)
    code = INCLUDE.sub("", NO_CODE.sub(blank, text))
    yield from check_vendor_names(path, code)
    yield from check_macros(path, code)
    yield from check_namespaces(path, code)


def check_columns(path: str, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_COLUMNS:
            yield Problem(path, number, f"{len(line)} columns, at most {MAX_COLUMNS}: wrap it")


def check_page(path: str, text: str) -> Iterator[Problem]:
    """A Markdown page in a folder."""
    prose = text
    for listing in (OUTPUT, FENCE):
        prose = listing.sub(lambda m: "\n" * m[0].count("\n"), prose)
    yield from check_columns(path, re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE))


def check_readmes(root: Path) -> Iterator[Problem]:
    for folder in TOP_FOLDERS:
        if (root / folder).is_dir() and not (root / folder / "README.md").is_file():
            yield Problem(
                f"{folder}/README.md", 1, "missing; each top folder says what it is and how to add"
            )
    for file in files_below(root):
        if file.suffix == ".md":
            yield from check_page(file.relative_to(root).as_posix(), file.read_text())
    if (root / "README.md").is_file():
        text = (root / "README.md").read_text()
        lines = text.count("\n")
        yield from check_columns("README.md", text)
        if lines > MAX_README_LINES:
            yield Problem("README.md", lines, f"{lines} lines, at most {MAX_README_LINES}")


@dataclass(frozen=True)
class Module:
    """A Python module or a C++ file, and the lines at which it imports others."""

    path: str
    imports: dict[str, int]


def imported_names(name: str, is_package: bool, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the full name of everything that is imported, for types only as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = node.level - is_package
            above = name.rsplit(".", dots)[0] if dots > 0 else name
            origin = ".".join(filter(None, (above if node.level else "", node.module)))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def python_modules(root: Path, package: str) -> dict[str, Module]:
    """All modules of a package by full name; SyntaxError where one is not Python."""
    files = {}
    for file in sorted((root / package).rglob("*.py")):
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = file
    modules = {}
    for name, file in files.items():
        path, imports = file.relative_to(root).as_posix(), {}
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"), path)
        for line, target in imported_names(name, file.name == "__init__.py", tree):
            owner = target if target in files else target.rpartition(".")[0]
            if owner in files and owner != name:
                imports.setdefault(owner, line)
        modules[name] = Module(path, imports)
    return modules


def check_python_layers(package: str, modules: dict[str, Module]) -> Iterator[Problem]:
    layers = PYTHON_LAYERS[package]

    def layer(name: str) -> str:
        return name.split(".")[1] if "." in name else "__init__"

    for name, module in modules.items():
        own = layer(name)
        if own not in layers:
            yield Problem(module.path, 1, f"{own} has no place in PYTHON_LAYERS of {package}")
            continue
        for target, line in module.imports.items():
            other = layer(target)
            if other in layers and layers.index(other) > layers.index(own):
                yield Problem(
                    module.path,
                    line,
                    f"{own} imports {target}, which is above it ({' < '.join(layers)})",
                )


def check_circles(modules: dict[str, Module], kind: str) -> Iterator[Problem]:
    """One problem for each circle; it is opened at one import to look for the next."""
    graph = {name: [it for it in of.imports if it in modules] for name, of in modules.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return
        except CycleError as error:
            circle = error.args[1][::-1]  # each imports the next, the last is the first again
        start = circle.index(min(circle))
        circle = [*circle[start:-1], *circle[:start], circle[start]]
        first = modules[circle[0]]
        line = first.imports[circle[1]]
        yield Problem(first.path, line, f"{kind} circle: {' -> '.join(circle)}")
        graph[circle[0]].remove(circle[1])


def check_python(root: Path) -> Iterator[Problem]:
    for package in PYTHON_LAYERS:
        try:
            modules = python_modules(root, package)
        except SyntaxError as error:
            yield Problem(error.filename or package, error.lineno or 1, f"no Python: {error.msg}")
            continue
        yield from check_python_layers(package, modules)
        yield from check_circles(modules, "import")


def includes_of(path: str, text: str) -> Module:
    """text: without comments."""
    found = ((match[1], line_of(text, match.start(1))) for match in INCLUDE.finditer(text))
    return Module(path, {name: line for name, line in found if name})


def is_source(path: Path) -> bool:
    """By suffix, or a script without one that says what runs it."""
    if path.suffix or not path.is_file():
        return path.suffix in SOURCE_SUFFIXES
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def files_below(root: Path) -> Iterator[Path]:
    for top in TOP_FOLDERS:
        for folder, subfolders, names in os.walk(root / top):
            subfolders[:] = sorted(
                s for s in subfolders if s not in SKIPPED_FOLDERS and s[0] != "."
            )
            yield from (Path(folder) / n for n in sorted(names))


def source_files(root: Path) -> Iterator[Path]:
    yield from (file for file in files_below(root) if is_source(file))


def check_tree(root: Path) -> Iterator[Problem]:
    yield from check_tracked(root)
    yield from check_readmes(root)
    yield from check_python(root)
    including: dict[str, Module] = {}
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8", errors="replace")
        yield from check_size(path, text)
        if file.suffix in CPP_SUFFIXES and path.split("/")[0] in LAYERS:
            yield from check_cpp(path, text)
            including[path] = includes_of(path, comments_blanked(text))
    yield from check_circles(including, "include")


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not any((root / layer).is_dir() for layer in LAYERS):
        print(f"{root} has none of the folders {', '.join(LAYERS)}", file=sys.stderr)
        return 2
    problems = list(check_tree(root))
    for problem in problems:
        print(problem)
    fatal = sum(problem.fatal for problem in problems)
    print(f"layers: {fatal} problems, {len(problems) - fatal} warnings")
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
