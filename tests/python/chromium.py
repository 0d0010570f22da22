"""Headless Chromium by its DevTools protocol over a pipe: opens a page, runs script, measures.

python tests/python/chromium.py report.html      # how long it takes to open and to search
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 120.0  # that an answer may take
NAMES = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """A tab."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Performance"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"]))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], SECONDS)[0], "Chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        return found

    def run(self, script: str) -> Any:
        """An expression's value, awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, url: str, ready: str) -> float:
        """Seconds from the navigation until `ready` holds and was painted."""
        began = time.perf_counter()
        self.call("Page.navigate", url=url)
        self.wait(ready)
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.perf_counter() - began

    def wait(self, ready: str) -> None:
        """Until the expression holds."""
        ends = time.perf_counter() + SECONDS
        while not self.run(f"Boolean({ready})"):
            assert time.perf_counter() < ends, f"never: {ready}"
            time.sleep(0.01)

    @property
    def heap(self) -> float:
        """What its script holds, in MB."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize")) / 1e6


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one tab. FileNotFoundError where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise FileNotFoundError("no Chromium on PATH: apt-get install chromium")
    to_browser, to_us = os.pipe(), os.pipe()
    # Chromium reads from 3 and writes to 4; the shell puts them there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [
            found, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]  # fmt: skip
        given = (to_browser[0], to_us[1])
        script = f'exec "$@" 3<&{given[0]} 4>&{given[1]}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words], pass_fds=given, stderr=subprocess.DEVNULL
        )
        for end in given:
            os.close(end)
        try:
            yield Page(to_us[0], to_browser[1])
        finally:
            process.terminate()
            process.wait(30)
            os.close(to_us[0])
            os.close(to_browser[1])


LISTED = "document.querySelectorAll('#list tbody tr').length > 0"
SEARCH = """(async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const box = document.querySelector("#filters input");
  const times = [];
  for (const words of ["s", "sd", "sdpa", "sdpa layers.41.", ""]) {
    const began = performance.now();
    box.value = words;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    await frame();
    times.push(performance.now() - began);
  }
  return times;
})()"""
OPEN_ROW = """(async () => {
  const began = performance.now();
  document.querySelector("#list button.row").click();
  while (!document.querySelector("#list tr.open h4")) await new Promise((done) => setTimeout(done));
  return performance.now() - began;
})()"""


def main() -> None:
    """Measures reports."""
    for name in sys.argv[1:]:
        page = Path(name).resolve()
        with chromium() as tab:
            listed = tab.open(f"file://{page}", LISTED)
            search, row = tab.run(SEARCH), tab.run(OPEN_ROW)
            size = page.stat().st_size / 1e6
            print(
                f"{page.name}, {size:.1f} MB: listed after {listed:.2f} s, a search takes at most "
                f"{max(search):.0f} ms, a row {row:.0f} ms; {tab.heap:.0f} MB of script's memory"
            )
            assert not tab.complaints, tab.complaints


if __name__ == "__main__":
    main()
