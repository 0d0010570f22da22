"""Recordings of a sweep: where they come from, and what is not taken."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_runs import ROOT

from reports.fleet.fetch import distinct, fetched, recordings_at

MODEL = ROOT / "fixtures" / "llama-a1"
CASE = "llama-a1/decode-bf16"
FILES = (
    "decode-bf16/recording.json",
    "decode-bf16/tensors.safetensors",
    "weights-bf16.safetensors",
)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Counts what it is asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """One recording and its weights, to be changed."""
    folder = tmp_path / "served" / "llama-a1"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(MODEL / name, folder / name)
    return folder


@pytest.fixture
def server(copy: Path) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the paths that it was asked for."""
    handler = type("Counting", (Handler,), {"asked": []})
    serve = functools.partial(handler, directory=str(copy.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", handler.asked
        running.shutdown()
        thread.join()


def same_files(view: Path) -> None:
    for name in FILES:
        assert (view / "llama-a1" / name).read_bytes() == (MODEL / name).read_bytes()


@pytest.mark.parametrize(
    "form", ["{}", "file://{}", "{}/decode-bf16", "{}/decode-bf16/recording.json"]
)
def test_a_path_or_file_uri_is_a_recording_or_a_folder_of_them(
    tmp_path: Path, copy: Path, form: str
) -> None:
    found = recordings_at(form.format(copy))
    assert [recording.name for recording in found] == [CASE]
    same_files(fetched(found, tmp_path / "cache"))


def test_what_a_node_has_is_not_fetched_again(
    tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    url, asked = server
    found = recordings_at(f"{url}/{CASE}/")
    view = fetched(found, tmp_path / "cache")
    same_files(view)
    assert sorted(asked[1:]) == sorted(f"/llama-a1/{name}" for name in FILES)
    assert fetched(found, tmp_path / "cache") == view
    assert len(asked) == 1 + len(FILES)
    shutil.rmtree(view)
    assert fetched(found, tmp_path / "cache") == view  # from what is there under its hash
    assert len(asked) == 1 + len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_changed_is_refused(
    tmp_path: Path, copy: Path, server: tuple[str, list[str]], name: str
) -> None:
    found = recordings_at(f"{server[0]}/{CASE}")
    data = bytearray((copy / name).read_bytes())
    data[-2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}: has the SHA-256 .*, its recording says"):
        fetched(found, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "views").iterdir())
    digest = hashlib.sha256(data).hexdigest()
    assert digest not in {path.name for path in (tmp_path / "cache" / "objects").iterdir()}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../../x/y", "tensors.safetensors"),
        ("one", "tensors.safetensors"),
        ("a/..", "tensors.safetensors"),
        (CASE, "../../passwd"),
        (CASE, "/etc/passwd"),
        (CASE, ".."),
    ],
)
def test_a_recording_names_no_files_elsewhere(copy: Path, name: str, path: str) -> None:
    header = json.loads((copy / FILES[0]).read_text())
    header["name"] = name
    header["files"]["tensors"]["path"] = path
    (copy / FILES[0]).write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"is not MODEL/CASE|names the file"):
        recordings_at(str(copy))


def test_what_is_no_recording_is_said(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    with pytest.raises(ValueError, match=r"there is no recording\.json below it"):
        recordings_at(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="recordings are at a path, file://, http"):
        recordings_at("s3://bucket/recording")
    with pytest.raises(OSError, match=r"missing/recording\.json: HTTP Error 404"):
        recordings_at(f"{server[0]}/missing")
    (tmp_path / "recording.json").write_text("[]")
    with pytest.raises(ValueError, match="is no recording"):
        recordings_at(str(tmp_path / "recording.json"))


def test_two_recordings_of_one_name_have_to_be_the_same(tmp_path: Path, copy: Path) -> None:
    other = tmp_path / "other" / "llama-a1"
    shutil.copytree(copy, other)
    first, second = recordings_at(str(copy)), recordings_at(str(other))
    assert len(distinct(first + second)) == 1
    text = (other / FILES[0]).read_text()
    (other / FILES[0]).write_text(text + " ")
    with pytest.raises(ValueError, match=f"are both {CASE}/recording.json and differ"):
        distinct(first + recordings_at(str(other)))
