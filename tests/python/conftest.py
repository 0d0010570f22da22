"""Fixtures that several files share."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness_runs import PLUGIN_SAMPLES, ROOT

from python_inspector.errors import HarnessError
from python_inspector.native import find_harness

# Processes that tests start use this checkout, whatever is installed and wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# Before anything imports Triton: its own functions are made for the interpreter then, or never.
if "PLUMB_TEST_DEVICE" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)  # before pytest looks at what it leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is `sampled`, all cases but the first and the last are `nightly`."""
    sampled = [item for item in items if item.get_closest_marker("sampled")]
    for _, cases in itertools.groupby(sampled, key=lambda item: item.nodeid.partition("[")[0]):
        for case in list(cases)[1:-1]:
            case.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample plugins, built against a copy of the header alone."""
    headers = tmp_path_factory.mktemp("include") / "kernels"
    headers.mkdir()
    shutil.copy(ROOT / "kernels" / "plugin.h", headers)
    out = tmp_path_factory.mktemp("plugins")
    include = f"-DPLUMBLINE={headers.parent}"
    for command in (
        ["cmake", "-G", "Ninja", "-S", str(PLUGIN_SAMPLES), "-B", str(out), include],
        ["cmake", "--build", str(out)],
    ):
        subprocess.run(command, check=True)  # pytest shows what it prints when it fails
    return out


@pytest.fixture(autouse=True)
def _where_tensors_are_made(request: pytest.FixtureRequest) -> Iterator[None]:
    """On the device that PLUMB_TEST_DEVICE names; see on_device.py."""
    device = os.environ.get("PLUMB_TEST_DEVICE")
    if device is None or request.node.get_closest_marker("host") is not None:
        yield
        return
    from on_device import MadeOn  # not before: most tests need no torch

    with MadeOn(device):
        yield


@pytest.fixture(scope="session")
def harness() -> Path:
    """The built binary."""
    try:
        return find_harness()
    except HarnessError as error:
        pytest.skip(str(error))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can write to, as pytest's own cannot."""
    with tempfile.TemporaryDirectory(prefix="plumbline-open-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def truncating_accelerator(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """As if tiny models were on an accelerator and had sums long enough for truncation to count;
    the shapes of what such losses were worked out for."""
    from python_inspector.trace import narrow_product, spread, truncation

    made: list[tuple[int, ...]] = []
    loss = truncation.loss

    def counted(a: Any, b: Any) -> Any:
        made.append((*a.shape, b.shape[-1]))
        _, variance = loss(a, b)
        return (a.double() @ b.double()) * 2.0**-7, variance  # short sums lose nothing that shows

    for module in (truncation, narrow_product):
        monkeypatch.setattr(module, "is_host", lambda device: False)
    monkeypatch.setattr(truncation, "LEAST_TERMS", 32)
    monkeypatch.setattr(truncation, "loss", counted)
    monkeypatch.setattr(spread, "_truncate", set())
    return made
