"""A local, read-only page over a running study: progress, curves, warnings. 127.0.0.1 unless asked otherwise.

Only fixed addresses are served, by GET and HEAD: no path of the request ever reaches the file system. The Host header must
name this very server, so that a foreign page cannot read it through a name that it points here (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ablationlab.core.errors import AblationLabError
from ablationlab.records.results import Results
from ablationlab.report.live import Live, may_begin

LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: How often what else follows the records is called.
ALSO_SECONDS = 5.0
#: A client that is silent for so long is left, and one whose request takes longer than this in all.
SILENCE_SECONDS, REQUEST_SECONDS = 10.0, 60.0
HTML, JSON = "text/html", "application/json"
#: Of what is no page.
POLICY = "default-src 'none'; frame-ancestors 'none'"


class Watcher(ThreadingHTTPServer):
    """Serves one results folder. ``host`` is an address of this machine; by default only this machine can reach it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 8642) -> None:
        if not folder.is_dir():
            raise AblationLabError(f"{folder} is not a results folder: there is no such folder. Start the study first")
        self.folder, self.live, self.asking = folder, Live(folder), threading.Lock()
        if not may_begin(folder):
            Results.open(folder, cache=self.live.cache)  # says why it is no results folder
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            text = f"cannot listen on {host}, port {port}: {reason}. Choose another with --port (0 takes a free one)"
            raise AblationLabError(text) from error
        self.host, self.port = host, int(self.server_address[1])
        self.also: Callable[[], object] | None = None
        self._last = 0.0
        self.names = {name.lower() for name in (host, *LOOPBACK)}
        if not is_loopback(host):
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def service_actions(self) -> None:
        """Between requests: what else follows the records, every few seconds."""
        super().service_actions()
        if self.also is not None and time.monotonic() - self._last > ALSO_SECONDS:
            self.also()
            self._last = time.monotonic()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a Host header names this server: one of its names, or, where others may reach it, any address."""
        if not host or any(sign in host for sign in "/\\@?#"):
            return False
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if port is not None and port != self.port:
            return False
        return name in self.names or (not is_loopback(self.host) and _is_address(name))

    def state(self, since: str = "") -> dict[str, Any]:
        """Whether there is more to show; one reading at a time."""
        with self.asking:
            return self.live.asked(since)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of a handful of addresses."""

    server: Watcher
    server_version = "ablationlab"
    sys_version = ""
    timeout = SILENCE_SECONDS

    def setup(self) -> None:
        """A client that sends or reads byte by byte loses its connection, and its thread ends."""
        super().setup()
        self._deadline = threading.Timer(REQUEST_SECONDS, self._hang_up)
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        """The request was answered in time."""
        self._deadline.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer with a body."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer without one."""
        self._answer(body=False)

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"read-only: GET and HEAD\n", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, *, body: bool) -> None:
        if not self.server.knows(self.headers.get("Host")):
            text = b"this server does not go by that name\n"
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", text, body=body)
            return
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"this is not an address\n", body=body)
            return
        found = ROUTES.get(parts.path)
        made = None if found is None else found(self.server, parse_qs(parts.query))
        if made is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n", body=body)
            return
        kind, content, policy = made
        self._send(HTTPStatus.OK, kind, content, {"Content-Security-Policy": policy} if policy else {}, body=body)

    def _send(
        self, status: HTTPStatus, kind: str, content: bytes, extra: dict[str, str] | None = None, *, body: bool = True
    ) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("X-Frame-Options", "DENY")
            for name, value in (extra or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


Made = tuple[str, bytes, str]


def _page(server: Watcher, _: dict[str, list[str]]) -> Made:
    """What there is now; it brings its own policy."""
    with server.asking:
        return HTML, server.live.page().encode(), "frame-ancestors 'none'"


def _state(server: Watcher, query: dict[str, list[str]]) -> Made:
    state = server.state(query.get("since", [""])[0])
    return JSON, json.dumps(state, allow_nan=False).encode(), POLICY


def _report(server: Watcher, _: dict[str, list[str]]) -> Made | None:
    """The finished page, which brings its own policy."""
    path = server.folder / "report.html"
    return (HTML, path.read_bytes(), "") if path.is_file() else None


ROUTES: dict[str, Callable[[Watcher, dict[str, list[str]]], Made | None]] = {
    "/": _page,
    "/data.json": _state,
    "/report.html": _report,
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
