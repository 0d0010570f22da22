"""A file server with range requests, which fails on request."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers ranges, counts bytes."""

    protocol_version = "HTTP/1.1"
    ranges = True
    breaks = 0  # answers that end in the middle
    sent: dict[str, int]  # by path

    def do_GET(self) -> None:
        kind = type(self)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        size, begin, end = len(content), 0, len(content)
        if asked and kind.ranges:
            begin, end = int(asked[1]), min(int(asked[2]) + 1, size)
            if begin >= size:
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if asked and kind.breaks:
            kind.breaks -= 1
            end = (begin + end) // 2
            self.close_connection = True
        kind.sent[self.path] = kind.sent.get(self.path, 0) + end - begin
        self.wfile.write(content[begin:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, type[Handler]]]:
    """The server's URL, and its handler, to be changed and asked."""
    handler = type("Counting", (Handler,), {"sent": {}})
    serve = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}", handler
        finally:
            running.shutdown()
            thread.join()
