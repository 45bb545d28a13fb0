"""A hub of data sets on this machine: enough of the real one's HTTP interface for the real client to load one from it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def hub(repository: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """(address, paths of files that were fetched so far) of a hub that holds one data set."""
    revision = hashlib.sha1(b"".join(files.values())).hexdigest()
    fetched: list[str] = []
    api, content = f"/api/datasets/{repository}", f"/datasets/{repository}/resolve/{revision}/"
    there = sorted({one for name in files for one in (PurePosixPath(name), *PurePosixPath(name).parents)})
    about = {"id": repository, "sha": revision, "private": False, "gated": False, "disabled": False, "tags": []}
    about |= {"downloads": 0, "likes": 0, "siblings": [{"rfilename": name} for name in files]}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(unquote(self.path)).path
            name = path.removeprefix(content)
            if path in (api, f"{api}/revision/main", f"{api}/revision/{revision}"):
                self.answer(json.dumps(about).encode())
            elif path.startswith(f"{api}/tree/{revision}"):
                inside = PurePosixPath(path.removeprefix(f"{api}/tree/{revision}").strip("/"))
                deep = "recursive=true" in self.path.lower()
                self.list(
                    one for one in there if one != inside and (inside in one.parents if deep else one.parent == inside)
                )
            elif path.startswith(content) and name in files:
                fetched.extend([name] if self.command == "GET" else [])
                self.answer(files[name])
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            asked = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
            self.list(one for one in there if str(one) in asked)

        def list(self, places: Iterable[PurePosixPath]) -> None:
            found = [
                {"type": "file", "path": str(one), "size": len(files[str(one)]), "oid": etag(files[str(one)])}
                if str(one) in files
                else {"type": "directory", "path": str(one), "size": 0, "oid": etag(str(one).encode())}
                for one in places
            ]
            self.answer(json.dumps(found).encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if body[:1] in b"[{" else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{etag(body)}"')
            self.send_header("X-Repo-Commit", revision)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()


def etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
