"""What transformers imports while a model class is loaded: no scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
from transformers import utils

from python_inspector.imports import _USER, without_sklearn


def is_there() -> bool:
    """Whether scikit-learn is installed, as transformers asks it."""
    return True


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has scikit-learn and has not imported its user."""
    monkeypatch.delitem(sys.modules, _USER, raising=False)
    monkeypatch.setattr(utils, "is_sklearn_available", is_there)


@pytest.mark.usefixtures("not_imported")
def test_inside_it_is_not_there() -> None:
    with without_sklearn():
        assert not utils.is_sklearn_available()
    assert utils.is_sklearn_available is is_there


@pytest.mark.usefixtures("not_imported")
def test_it_is_back_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), without_sklearn():
        raise ImportError("no such module")
    assert utils.is_sklearn_available is is_there


@pytest.mark.usefixtures("not_imported")
def test_nothing_is_hidden_where_its_user_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, _USER, ModuleType(_USER))
    with without_sklearn():
        assert utils.is_sklearn_available is is_there
    assert utils.is_sklearn_available is is_there


LOADING = """
import sys
from transformers import utils
from python_inspector.imports import _USER, without_sklearn
utils.is_sklearn_available = lambda: True
with without_sklearn():
    import transformers.generation.candidate_generator as user
sys.exit(user.__name__ != _USER or hasattr(user, "roc_curve") or "sklearn" in sys.modules)
"""


def test_its_user_goes_without_it() -> None:
    """In a process that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
