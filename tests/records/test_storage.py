from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warm
from ablationlab.core.errors import RecordError, StorageError
from ablationlab.records.storage import (
    LARGEST_RECORD,
    TEMPORARY,
    Lock,
    canonical_json,
    content_hash,
    create,
    new_folder,
    next_numbered,
    numbered,
    read_json,
    replace,
    sha256_file,
    sweep,
    sweep_abandoned,
    write_bytes,
)


def in_a_process(code: str, *arguments: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run *code*; a file that grows over *limit* bytes gets a real error of the operating system."""
    head = "import sys\nfrom pathlib import Path\nfrom ablationlab.core.errors import StorageError\n"
    head += "from ablationlab.records.storage import *\n"
    if limit is not None:
        head += "import resource\n_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        head += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))\n"
    command = [warm.FRESH, "-c", head + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- files ------------------------------------------------------------------------------------------------


def test_create_writes_the_whole_file_and_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"
    create(path, b"content")
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_create_never_overwrites(tmp_path):
    path = tmp_path / "file.json"
    create(path, b"first")
    with pytest.raises(FileExistsError):
        create(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_processes_that_create_one_file_exactly_one_succeeds(tmp_path):
    code = (
        "try:\n    create(Path(sys.argv[1]), sys.argv[2].encode() * 1000)\n    print('won')\n"
        "except FileExistsError:\n    print('lost')"
    )
    head = "import sys\nfrom pathlib import Path\nfrom ablationlab.records.storage import create\n"
    crew = [
        subprocess.Popen([warm.FRESH, "-c", head + code, tmp_path / "f", str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in crew]
    assert sorted(said) == ["lost", "lost", "lost", "won"]
    assert (tmp_path / "f").read_bytes() == str(said.index("won")).encode() * 1000
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_replace_takes_the_place_of_the_older_file(tmp_path):
    path = tmp_path / "deep" / "file"
    replace(path, b"old")
    replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_write_bytes_refuses_a_file_that_is_there(tmp_path):
    write_bytes(tmp_path / "f", b"1")
    with pytest.raises(StorageError, match=r"cannot write .*f: File exists"):
        write_bytes(tmp_path / "f", b"2")
    assert (tmp_path / "f").read_bytes() == b"1"


@pytest.mark.parametrize("verb", ["create", "replace"])
def test_a_full_disk_is_one_clear_error_and_leaves_no_trace(tmp_path, verb):
    code = (
        f"try:\n    {verb}(Path(sys.argv[1]), b'x' * 5000)\n"
        "except StorageError as error:\n    print(error)\n"
        "print(sorted(path.name for path in Path(sys.argv[1]).parent.iterdir()))"
    )
    answer = in_a_process(code, tmp_path / "file.json", limit=4096)
    assert answer.stderr == ""
    message, left = answer.stdout.splitlines()
    assert "the disk (or a quota on it) is full; free some space" in message
    assert "What was finished before is intact; run the same command again." in message
    assert left == "[]"
    assert message.startswith(f"cannot write {tmp_path / 'file.json'}: ")


def test_a_full_disk_keeps_the_old_version_of_a_replaced_file(tmp_path):
    path = tmp_path / "file"
    replace(path, b"old")
    code = "try:\n    replace(Path(sys.argv[1]), b'x' * 5000)\nexcept StorageError:\n    print('refused')"
    assert in_a_process(code, path, limit=4096).stdout == "refused\n"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [create, replace, write_bytes])
def test_a_place_that_cannot_be_written_is_named(tmp_path, write):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        write(tmp_path / "file" / "inner.json", b"x")
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'file' / 'inner.json'}: ")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_asks_for_another(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="the folder cannot be written; choose another with --out"):
        create(tmp_path / "f", b"x")
    tmp_path.chmod(0o700)


# --- folders ----------------------------------------------------------------------------------------------


def test_a_new_folder_appears_with_all_of_its_content(tmp_path):
    target = tmp_path / "step-1"
    with new_folder(target) as folder:
        write_bytes(folder / "a", b"1")
        assert not target.exists()
    assert (target / "a").read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_folder_leaves_nothing_behind_on_error(tmp_path):
    def write() -> None:
        with new_folder(tmp_path / "step-1") as folder:
            write_bytes(folder / "a", b"1")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_never_takes_the_place_of_one_with_content(tmp_path):
    target = tmp_path / "step-1"
    with new_folder(target) as folder:
        write_bytes(folder / "a", b"1")
    with pytest.raises(StorageError, match=r"cannot write .*step-1"), new_folder(target) as folder:
        write_bytes(folder / "a", b"2")
    assert (target / "a").read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_inside_a_new_folder_leaves_nothing_behind(tmp_path):
    code = (
        "try:\n    with new_folder(Path(sys.argv[1]) / 'step-1') as folder:\n"
        "        write_bytes(folder / 'small', b'x')\n        write_bytes(folder / 'large', b'x' * 5000)\n"
        "except StorageError as error:\n    print(error)"
    )
    answer = in_a_process(code, tmp_path, limit=4096)
    assert "is full; free some space" in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_sweep_removes_only_what_a_killed_writer_left(tmp_path):
    code = (
        "import os, signal\nwith new_folder(Path(sys.argv[1]) / 'step-1') as folder:\n"
        "    write_bytes(folder / 'a', b'1')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert in_a_process(code, tmp_path).returncode == -signal.SIGKILL
    (tmp_path / ".tmp-file-1234").write_text("half")
    (tmp_path / "kept").write_text("whole")
    assert len(list(tmp_path.iterdir())) == 3
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


# --- hashes and JSON --------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5))
def test_the_hash_of_a_table_does_not_know_the_order_of_its_keys(table):
    assert content_hash(dict(reversed(table.items()))) == content_hash(table)


def test_the_hash_knows_values_and_types():
    hashes = {content_hash(value) for value in ({"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"a": [1]}, {"b": 1})}
    assert len(hashes) == 6
    # Against the definition: SHA-256 of the canonical JSON, computed elsewhere.
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert content_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_a_hash_is_never_taken_of_a_number_that_json_lacks():
    with pytest.raises(ValueError, match="not JSON compliant"):
        content_hash({"loss": float("nan")})


def test_the_checksum_of_a_file_is_its_sha256(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    "content",
    [b"", b'{"a": ', b"\xff\xfe", b"{'a': 1}", b"[" * 1_000_000, b'{"a":' * 1_000_000],
    ids=["empty", "torn", "binary", "python", "deep list", "deep table"],
)
def test_a_damaged_json_file_is_named(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} cannot be read as JSON: ")


def test_an_absent_json_file_is_named(tmp_path):
    with pytest.raises(RecordError) as caught:
        read_json(tmp_path / "no.json")
    assert str(caught.value) == f"{tmp_path / 'no.json'} does not exist"


def deep(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [deep, device, loop, os.mkfifo, Path.mkdir])
def test_what_cannot_be_a_record_is_named_and_never_waited_for(tmp_path, make):
    path = tmp_path / "record.json"
    make(path)
    with pytest.raises(RecordError, match=str(path)):
        read_json(path)


@pytest.mark.parametrize("make", [device, os.mkfifo, Path.mkdir])
def test_what_cannot_be_hashed_is_named_and_never_waited_for(tmp_path, make):
    path = tmp_path / "weights.safetensors"
    make(path)
    with pytest.raises(RecordError, match=f"{path} is not a regular file"):
        sha256_file(path)


def test_a_record_beyond_any_size_is_named_without_reading_it(tmp_path):
    path = tmp_path / "record.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_RECORD + 1)  # a hole: it takes no room
    with pytest.raises(RecordError, match=r"2,147,483,649 bytes; no record has more"):
        read_json(path)


def test_every_new_folder_is_flushed_with_the_one_that_holds_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("ablationlab.records.storage.sync_folder", flushed.append)
    create(tmp_path / "results" / "study" / "runs" / "a" / "run.json", b"{}")
    above = [tmp_path, tmp_path / "results", tmp_path / "results" / "study", tmp_path / "results" / "study" / "runs"]
    assert flushed == [*above, above[-1] / "a"]


def test_what_killed_writers_left_is_swept_and_what_is_being_written_is_not(tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom ablationlab.records import storage\n"
        "def wait(*_):\n    print(flush=True)\n    sys.stdin.read()\n"
        "storage.os.fsync = wait\nstorage.replace(Path(sys.argv[1]), b'new')\n"
    )
    words = [warm.FRESH, "-c", code, tmp_path / "arms.csv"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (there,) = tmp_path.iterdir()
        sweep_abandoned(tmp_path)
        assert list(tmp_path.iterdir()) == [there]
        writer.kill()
    (tmp_path / f"{TEMPORARY}folder").mkdir()
    os.mkfifo(tmp_path / f"{TEMPORARY}pipe")
    assert there.exists()
    sweep_abandoned(tmp_path)
    assert not there.exists()


def test_without_hard_links_a_file_is_still_created_once(tmp_path, monkeypatch):
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("ablationlab.records.storage.os.link", no_links)
    create(tmp_path / "plan.lock", b"first")
    with pytest.raises(FileExistsError):
        create(tmp_path / "plan.lock", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("plan.lock", b"first")]


# --- locks ------------------------------------------------------------------------------------------------

HOLD = "lock = Lock(Path(sys.argv[1]))\nprint(lock.acquire(), flush=True)\nsys.stdin.read()"


def holder(path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input is closed."""
    head = "import sys\nfrom pathlib import Path\nfrom ablationlab.records.storage import Lock\n"
    process = subprocess.Popen(
        [warm.FRESH, "-c", head + HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_a_lock_excludes_a_second_process_and_names_its_holder(tmp_path):
    path = tmp_path / "locks" / "stack-0000"
    with holder(path) as other:
        lock = Lock(path)
        assert lock.held_elsewhere()
        assert not lock.acquire()
        assert lock.holder() == str(other.pid)
        other.communicate(timeout=60)
    assert not lock.held_elsewhere()
    assert lock.acquire()
    assert lock.holder() == str(os.getpid())
    lock.release()


def test_a_lock_is_freed_when_its_holder_is_killed(tmp_path):
    path = tmp_path / "stack-0000"
    with holder(path) as other:
        assert not Lock(path).acquire()
        other.send_signal(signal.SIGKILL)
        assert other.wait(timeout=60) == -signal.SIGKILL
    lock = Lock(path)
    assert lock.acquire()
    lock.release()


def test_a_lock_can_be_given_back_and_taken_again(tmp_path):
    first, second = Lock(tmp_path / "l"), Lock(tmp_path / "l")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    first.release()
    assert second.acquire()
    second.release()
    assert (tmp_path / "l").exists(), "the file stays, so that nobody locks another file of the same name"


def test_asking_for_a_lock_that_nobody_ever_held_creates_nothing(tmp_path):
    lock = Lock(tmp_path / "locks" / "l")
    assert not lock.held_elsewhere()
    assert lock.holder() == "unknown"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_note_its_holder_is_not_kept(tmp_path):
    code = (
        "lock = Lock(Path(sys.argv[1]))\n"
        "try:\n    lock.acquire()\nexcept StorageError as error:\n    print('is full' in str(error))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "print(Lock(Path(sys.argv[1])).acquire())"
    )
    answer = in_a_process(code, tmp_path / "l", limit=0)
    assert answer.stderr == ""
    assert answer.stdout.split() == ["True", "True"]


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("ablationlab.records.storage.fcntl.flock", no_locks)
    lock = Lock(tmp_path / "stack-0000")
    with pytest.raises(StorageError, match=r"No locks available.*choose a folder on another with --out"):
        lock.acquire()
    assert not lock.held_elsewhere()  # what is there can still be read


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "loop", "folder"])
def test_a_lock_is_a_file_of_its_folder_or_none(tmp_path, kind):
    """A link would be written through, to a file outside, and a pipe would make every verb wait."""
    outside, path = tmp_path / "outside", tmp_path / "locks" / "stack-0000"
    path.parent.mkdir()
    if kind == "link":
        outside.write_text("precious")
    match kind:
        case "link" | "dangling":
            path.symlink_to(outside)
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
    lock = Lock(path)
    with pytest.raises(StorageError, match="stack-0000"):
        lock.acquire()
    with pytest.raises(StorageError, match="stack-0000"):
        lock.held_elsewhere()
    assert lock.holder() == "unknown" or kind == "link"
    assert outside.exists() == (kind == "link")
    assert kind != "link" or outside.read_text() == "precious"


def test_a_copy_of_a_numbered_record_is_not_another_one(tmp_path):
    names = ("0001.json", "0001 copy.json", "0001-old.json", "00001.json", "1.json", "0001\u00b2.json", "\u0661.json")
    for name in (*names, "0003.json", "10000.json"):
        (tmp_path / name).touch()
    assert [path.name for path in numbered(tmp_path)] == ["0001.json", "0003.json", "10000.json"]
    assert next_numbered(tmp_path).name == "10001.json"
    (tmp_path / "10.json").touch()
    assert [path.name for path in numbered(tmp_path, digits=1)] == ["1.json", "10.json", "10000.json"]


def test_a_folder_that_cannot_be_flushed_is_a_message(tmp_path, monkeypatch):
    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("ablationlab.records.storage.sync_folder", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        create(tmp_path / "plan.lock", b"{}")
