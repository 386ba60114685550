"""Serves the page of a run while it goes on: to this machine only, to read, behind a token.

    http://127.0.0.1:PORT/TOKEN/            the outer page
    http://127.0.0.1:PORT/TOKEN/state       version of the records, and what the run does
    http://127.0.0.1:PORT/TOKEN/page.html   the page of the records of now

Another token is answered with 403, any other path with 404, any other method with 405. A Host that
is not this machine is answered with 403: a page elsewhere whose name leads here must not read it.
"""

import contextlib
import hashlib
import http.server
import json
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from millrace.errors import MillraceError, OptionError
from millrace.records.run import RunRecords, load
from millrace.reports.live_page import inner_policy, live_page, live_policy
from millrace.reports.page import page
from millrace.reports.running import RunState, run_state

ADDRESS = "127.0.0.1"
_HOSTS = ("127.0.0.1", "localhost", "[::1]")  # the other end of a tunnel may have another port
_TOKEN_BYTES = 24
_TIMEOUT = 10.0  # seconds that a request may take to arrive
_SENDING_TIMEOUT = 120.0
_MAX_CONNECTIONS = 32  # at one time; more of them wait
_REST = 3.0  # times as long as the last page took to make, no other one is made
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_STATES = {
    "running": "the run goes on",
    "ended": "the run has ended",
    "unknown": "nothing on this host says whether the run goes on",
}


class LivePages:
    """The page of a run as its records are now, made anew where they have changed."""

    def __init__(self, directory: pathlib.Path):
        """Begins without a page.

        Args:
            directory: of one run.
        """
        self.directory = directory
        self._lock = threading.Lock()
        self._version = ""
        self._read_at = 0.0
        self._text = b""
        self._run: RunRecords | None = None
        self._may_read_at = 0.0  # of time.monotonic()
        self._error = ""

    def refresh(self) -> None:
        """Reads the records if they have changed, but does not spend all its time on it."""
        with self._lock:
            files = self._files_now()
            if self._version_of(files) == self._version or time.monotonic() < self._may_read_at:
                return
            begin = time.monotonic()
            try:
                self._run = load(self.directory)
                self._text = page([self._run]).encode(errors="replace")
                self._read_at, self._error = time.time(), ""
                self._version = self._version_of(files)
            except (MillraceError, OSError) as error:  # such as a directory that was removed
                self._error = str(error)
            self._may_read_at = time.monotonic() + _REST * (time.monotonic() - begin)

    def page(self) -> bytes:
        """Returns the page of the records that were read last."""
        self.refresh()
        with self._lock:
            return self._text

    def state(self) -> dict[str, str]:
        """Returns what the outer page asks for."""
        self.refresh()
        with self._lock:
            running = run_state(self._run) if self._run is not None else "unknown"
            read = time.strftime("%H:%M:%S", time.localtime(self._read_at))
            text = f"{self.directory}: {_STATES[running]}, records read at {read}"
            return {
                "version": self._version,
                "state": running,
                "title": f"{self.directory.name} - {running}",
                "text": f"{text}. {self._error}" if self._error else text,
            }

    def run_state(self) -> RunState:
        """Returns whether the run goes on, without reading its records again."""
        with self._lock:
            return run_state(self._run) if self._run is not None else "unknown"

    def _version_of(self, files: Sequence[str]) -> str:
        """Returns a hash of all files of records, and of whether the run goes on."""
        running = run_state(self._run) if self._run is not None else ""
        return hashlib.sha256("\n".join([running, *files]).encode()).hexdigest()[:16]

    def _files_now(self) -> list[str]:
        """Returns the sizes and times of all files of records."""
        found: list[str] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
        return found


class LiveServer(http.server.ThreadingHTTPServer):
    """Answers requests to the loopback address, each in a thread of its own."""

    daemon_threads = True  # a client that is slow does not keep the command from ending
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, directory: pathlib.Path, port: int = 0):
        """Listens.

        Args:
            directory: of one run.
            port: 0 for one that is free.

        Raises:
            OptionError: if the port is taken or not permitted.
        """
        self.pages = LivePages(directory)
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"--port {port} of {ADDRESS} cannot be served: {error}. Set --port to another "
                "number between 1024 and 65535, or leave it out for one that is free."
            ) from error

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a request, unless too many are at work: then it is turned away."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leaves out the traceback of a client that has gone."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request, and closes the connection."""

    timeout = _TIMEOUT
    server_version, sys_version = "millrace", ""
    protocol_version = "HTTP/1.0"

    def handle(self) -> None:
        """Answers, unless the request takes longer to arrive than it may."""
        self._timer = threading.Timer(_TIMEOUT, self._abandon)
        self._timer.daemon = True
        self._timer.start()
        try:
            super().handle()
        finally:
            self._timer.cancel()

    def do_GET(self) -> None:
        """Answers with one of the three pages."""
        self._timer.cancel()
        path, pages = self.path.partition("?")[0], self._server.pages
        if not self._is_of_this_machine():
            self._refuse(403, "This server answers requests to 127.0.0.1 and localhost only.")
            return
        token, slash, name = path.removeprefix("/").partition("/")
        expected = self._server.token.encode()
        is_right = secrets.compare_digest(token.encode(errors="replace"), expected)
        if not is_right and slash and path.startswith("/") and token and "." not in token:
            self._refuse(403, "The address has another token than the one that was printed.")
        elif not is_right or not slash or not path.startswith("/"):
            self._refuse(404, "There is nothing here.")
        elif not name:
            title = f"{pages.directory.name} - millrace"
            self._answer(live_page(title), "text/html; charset=utf-8", live_policy())
        elif name == "state":
            text = json.dumps(pages.state()).encode()
            self._answer(text, "application/json", "default-src 'none'")
        elif name == "page.html":
            if text := pages.page():
                self._answer(text, "text/html; charset=utf-8", inner_policy())
            else:
                self._refuse(503, "The records of this run cannot be read now.")
        else:
            self._refuse(404, "There is nothing here.")

    def do_HEAD(self) -> None:
        """Answers without the page itself."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what is no request for a page: without repeating any of it."""
        if code == 501:
            self._refuse(405, "Only GET and HEAD are answered.")
        else:
            self._refuse(code, "This is no request that can be answered.")

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the addresses have the token."""

    @property
    def _server(self) -> LiveServer:
        return cast(LiveServer, self.server)

    def _is_of_this_machine(self) -> bool:
        hosts: Sequence[str] = self.headers.get_all("Host") or ()
        if len(hosts) != 1:
            return False
        name, _, port = hosts[0].rpartition(":")
        if not port.isdecimal() or not name:
            name = hosts[0]
        return name.lower() in _HOSTS

    def _answer(self, body: bytes, kind: str, policy: str, status: int = 200) -> None:
        self.send_response(status)
        headers = {**_HEADERS, "Content-Type": kind, "Content-Security-Policy": policy}
        if status == 405:
            headers["Allow"] = "GET, HEAD"
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.connection.settimeout(_SENDING_TIMEOUT)  # of a page through a slow tunnel
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._answer(f"{text}\n".encode(), "text/plain", "default-src 'none'", status)

    def _abandon(self) -> None:
        """Ends the connection of a client that sends too slowly: the thread stops reading."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
