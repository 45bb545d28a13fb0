"""The watcher: follows a study, says that it is interim, and serves nothing else to nobody else."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ablationlab.core.errors import AblationLabError
from ablationlab.records.results import Results
from ablationlab.records.run import METRICS_HEADER, RunRecord, StepLine
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.interim import interim_effects
from ablationlab.report.live import Live
from ablationlab.report.watch import Watcher
from analysis.builder import build, calm, make_plan, outcome, study, write_run


@pytest.fixture
def serve() -> Iterator[Callable[..., Watcher]]:
    """Watch a folder on a free port."""
    running = []

    def start(folder: Path, host: str = "127.0.0.1") -> Watcher:
        server = Watcher(folder, host, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server: Watcher, path: str, method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{server.port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def running(folder: Path) -> Any:
    """A study of which one run has ended, one diverged and one is at step 30, with a spike."""
    plan = make_plan(study(seeds=[1, 2, 3]))
    plan.create(ResultsFolder(folder).plan)
    first, second, third, *_ = plan.runs
    write_run(folder, plan, first, outcome(first.variant, first.regime, first.seed), calm(1))
    write_run(folder, plan, second, None, [3.0, 2.9, float("nan")])
    write_run(folder, plan, third, outcome(third.variant, third.regime, third.seed), calm(3))
    (folder / "runs" / third.id / "result.json").unlink()
    losses = calm(3)[:30]
    losses[25:28] = [9.0, 9.0, 9.0]
    write_lines(folder, third.id, losses)
    return plan


def write_lines(folder: Path, run: str, losses: list[float]) -> None:
    lines = [
        StepLine(step=i, loss=loss, lr=1e-3, gradient_norm=1.0, tokens=i).to_line()
        for i, loss in enumerate(losses, start=1)
    ]
    (folder / "runs" / run / "metrics.jsonl").write_text(METRICS_HEADER + "".join(lines) + '{"step": 31, "lo')


def test_the_state_tells_progress_and_trouble(tmp_path: Path, serve: Callable[..., Watcher]):
    plan = running(tmp_path)
    server = serve(tmp_path)
    _, state = server.live.state()
    assert (state.ended.text, state.finished) == ("2 of 6 runs ended", False)
    assert state.share == pytest.approx((60 + 60 + 30) / 360)
    texts = [warning.text for warning in state.warnings]
    assert any(f"{plan.runs[1].id} diverged at step 3" in text for text in texts)
    assert f"{plan.runs[2].id}: loss spike at step 26" in texts
    assert f"{plan.runs[2].id} stopped at step 30 of 60" in texts
    status, headers, body = ask(server, f"/data.json?since={state.version}")
    assert (status, json.loads(body)["unchanged"]) == (200, True)
    assert headers["content-type"].startswith("application/json")
    write_lines(tmp_path, plan.runs[2].id, calm(3)[:40])
    moved = json.loads(ask(server, f"/data.json?since={state.version}")[2])
    assert not moved["unchanged"]
    assert moved["left"].endswith(("s", "min"))


def test_the_page_follows_by_itself_and_says_it_is_no_inference(
    tmp_path: Path, serve: Callable[..., Watcher], visit: Callable[..., Any]
):
    plan = running(tmp_path)
    server = serve(tmp_path)
    seen = visit(server.address, width=390, height=844)
    page = seen.page
    assert "Interim, not inference" in page.locator("#interim").inner_text()
    assert "2 of 6 runs ended" in page.locator("#words").inner_text()
    assert page.locator("#warnings li").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    for run in plan.runs:
        write_run(tmp_path, plan, run, outcome(run.variant, run.regime, run.seed), calm(run.seed))
    page.get_by_text("6 of 6 runs ended").wait_for(timeout=30_000)
    assert page.locator("#interim").count() == 0
    assert all(address.startswith((server.address, "data:")) for address in seen.asked)
    assert seen.said == []


def partly(folder: Path, pairs: int, diverged: int | None = None, **changes: Any) -> Any:
    """A study of which the first pairs are complete; the variant's run of seed *diverged* diverged."""
    plan = make_plan(study(**changes))
    plan.create(ResultsFolder(folder).plan)
    for run in plan.runs:
        if run.seed <= pairs:
            lost = run.seed == diverged and run.variant != "none"
            made = None if lost else outcome(run.variant, run.regime, run.seed)
            write_run(folder, plan, run, made, [3.0, float("nan")] if lost else calm(run.seed))
    return plan


def test_pairs_that_are_complete_are_described_and_not_tested(tmp_path: Path):
    partly(tmp_path, 3, diverged=2)
    row = interim_effects(Results.open(tmp_path))[0]
    deltas = [
        outcome("layernorm", "default", seed)["validation_loss"] - outcome("none", "default", seed)["validation_loss"]
        for seed in (1, 3)
    ]
    assert (row.metric, row.role, row.variant, row.reference) == ("validation_loss", "primary", "layernorm", "none")
    assert (row.n.text, row.flags) == ("2 of 5", ("lost runs",))
    assert row.estimate.value == pytest.approx(sum(deltas) / 2)
    assert row.ticks == pytest.approx(deltas)
    assert not any(slot.at for slot in row.slots())
    assert row.answer is None
    page = Live(tmp_path).page()
    assert "2 of 5 pairs" in page
    assert '<section id="when"' in page
    assert ">better<" not in page
    assert 'id="sure"' not in page


def test_half_a_pair_has_no_value(tmp_path: Path):
    plan = partly(tmp_path, 1)
    first = plan.runs[2]
    write_run(tmp_path, plan, first, outcome(first.variant, first.regime, first.seed), calm(first.seed))
    assert {row.n.text for row in interim_effects(Results.open(tmp_path))} == {"1 of 5"}
    for run in plan.runs[:3]:
        if run.variant != "none":
            shutil.rmtree(tmp_path / "runs" / run.id)
    (row,) = {row.n.text: row for row in interim_effects(Results.open(tmp_path))}.values()
    assert (row.n.text, row.estimate.text, row.drawn) == ("0 of 5", "–", None)


def test_metrics_that_are_compared_as_logarithms_differ_in_percent(tmp_path: Path):
    criteria = [{"metric": "perplexity", "role": "primary", "smallest_effect": 0.05}]
    partly(tmp_path, 3, criteria=criteria)
    (row,) = interim_effects(Results.open(tmp_path))
    logs = [
        outcome("layernorm", "default", seed)["validation_loss"] - outcome("none", "default", seed)["validation_loss"]
        for seed in (1, 2, 3)
    ]
    assert (row.name, row.unit) == ("perplexity", "%")
    assert row.estimate.value == pytest.approx(sum(logs) / 3)


def test_runs_that_have_ended_before_a_look_do_not_end_the_study(tmp_path: Path):
    partly(tmp_path, 3, design={"looks": [3, 5]})
    _, state = Live(tmp_path).state()
    assert (state.ended.text, state.finished) == ("6 of 6 runs ended", False)


@pytest.mark.parametrize(
    "path",
    [
        "/plan.lock",
        "/../plan.lock",
        "/%2e%2e/plan.lock",
        "//etc/passwd",
        "/runs/",
        "/..%2f..%2fetc/passwd",
        "/report.html/../plan.lock",
        "/report.html",
        "/style.css",
        "/live.js",
    ],
)
def test_nothing_but_its_own_addresses_is_served(tmp_path: Path, serve: Callable[..., Watcher], path: str):
    build(tmp_path)
    assert ask(serve(tmp_path), path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_is_read_only(tmp_path: Path, serve: Callable[..., Watcher], method: str):
    build(tmp_path)
    status, headers, _ = ask(serve(tmp_path), "/data.json", method)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"


def test_head_has_no_body_and_every_answer_its_guards(tmp_path: Path, serve: Callable[..., Watcher]):
    build(tmp_path)
    server = serve(tmp_path)
    for path in ("/", "/data.json"):
        status, headers, body = ask(server, path, "HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 30
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "",
        "a@127.0.0.1:{port}",
        "192.168.0.1:{port}",
    ],
)
def test_a_foreign_name_is_refused(tmp_path: Path, serve: Callable[..., Watcher], host: str):
    build(tmp_path)
    server = serve(tmp_path)
    status, _, body = ask(server, "/data.json", host=host.format(port=server.port))
    assert status == 421
    assert b"made" not in body


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
def test_its_own_names_are_known(tmp_path: Path, serve: Callable[..., Watcher], host: str):
    build(tmp_path)
    server = serve(tmp_path)
    assert ask(server, "/data.json", host=host.format(port=server.port))[0] == 200


def test_asked_to_it_listens_wider_but_still_under_no_foreign_name(tmp_path: Path, serve: Callable[..., Watcher]):
    build(tmp_path)
    server = serve(tmp_path, "0.0.0.0")
    assert ask(server, "/data.json", host=f"10.1.2.3:{server.port}")[0] == 200
    assert ask(server, "/data.json", host=f"evil.example:{server.port}")[0] == 421


def test_an_address_that_is_none_is_a_bad_request(tmp_path: Path, serve: Callable[..., Watcher], capfd):
    build(tmp_path)
    server = serve(tmp_path)
    assert ask(server, "http://[::1/")[0] == 400
    assert ask(server, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_client_that_sends_byte_by_byte_is_left(tmp_path: Path, serve: Callable[..., Watcher], monkeypatch):
    monkeypatch.setattr("ablationlab.report.watch.REQUEST_SECONDS", 0.3)
    build(tmp_path)
    server = serve(tmp_path)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert client.recv(1) == b""  # it waits for the rest of the line, and then hangs up


def test_a_client_that_dribbles_or_does_not_read_gives_its_thread_back(
    tmp_path: Path, serve: Callable[..., Watcher], monkeypatch
):
    monkeypatch.setattr("ablationlab.report.watch.REQUEST_SECONDS", 0.3)
    build(tmp_path)
    server = serve(tmp_path)
    (tmp_path / "report.html").write_text("x" * 3_000_000)  # more than the buffers of a socket hold
    before, most = threading.active_count(), 0
    dribbling = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    deaf.connect(("127.0.0.1", server.port))
    deaf.sendall(f"GET /report.html HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    with dribbling, deaf:
        for _ in range(2_000):
            with suppress(OSError):  # the server has hung up
                dribbling.sendall(b"G")
            most = max(most, threading.active_count())
            if most > before >= threading.active_count():
                break
            time.sleep(0.01)
        assert most > before >= threading.active_count()
        assert ask(server, "/")[0] == 200


def test_the_report_is_served_once_it_is_there(tmp_path: Path, serve: Callable[..., Watcher]):
    build(tmp_path)
    server = serve(tmp_path)
    (tmp_path / "report.html").write_text("<p>the report</p>")
    assert ask(server, "/report.html")[2] == b"<p>the report</p>"


def test_a_folder_without_a_plan_yet_is_waited_for(tmp_path: Path, serve: Callable[..., Watcher]):
    server = serve(tmp_path)
    (tmp_path / ".gitignore").touch()
    waiting = f"Waiting for {tmp_path}/plan.lock"
    assert waiting in ask(server, "/")[2].decode()
    (tmp_path / "calibration").mkdir()
    assert f"{waiting}; calibration or sweep has begun" in ask(server, "/")[2].decode()
    build(tmp_path)
    assert server.live.state()[1].finished


def test_mistakes_are_named(tmp_path: Path, serve: Callable[..., Watcher]):
    with pytest.raises(AblationLabError, match="no such folder"):
        Watcher(tmp_path / "nowhere")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(
        AblationLabError, match=r"home is not a results folder: it has neither plan\.lock nor analysis\.json"
    ):
        Watcher(tmp_path / "home", port=0)
    (tmp_path / "home" / "letter.txt").rename(tmp_path / "home" / "plan.lock")
    with pytest.raises(AblationLabError, match="neither a plan nor an analysis can be read"):
        Watcher(tmp_path / "home", port=0)
    tmp_path = tmp_path / "study"
    tmp_path.mkdir()
    taken = serve(tmp_path)
    with pytest.raises(AblationLabError, match=f"port {taken.port}.*--port"):
        Watcher(tmp_path, port=taken.port)


def test_control_c_stops_it(tmp_path: Path):
    build(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "ablationlab", "watch", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "http://127.0.0.1:" in first
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "stopped" in rest
    assert "Traceback" not in rest


@pytest.mark.needs("tensorboard")
def test_event_files_hold_the_records(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from ablationlab.report.tensorboard import Mirror

    plan = running(tmp_path / "results")
    mirror = Mirror(tmp_path / "results", tmp_path / "events")
    assert mirror.update() == 60 + 3 + 30 + 2
    assert mirror.update() == 0
    write_lines(tmp_path / "results", plan.runs[2].id, calm(3)[:40])
    assert mirror.update() == 10
    mirror.close()
    read = EventAccumulator(str(tmp_path / "events" / plan.runs[0].id))
    read.Reload()
    losses = [event.value for event in read.Scalars("training/loss")]
    assert losses == pytest.approx(calm(1), rel=1e-6)
    assert read.Scalars("result/validation_loss")[0].step == 60
    with pytest.raises(AblationLabError, match="event files already"):
        Mirror(tmp_path / "results", tmp_path / "events")


def test_what_has_not_changed_is_neither_read_nor_sent_again_and_what_has_is(tmp_path: Path, monkeypatch):
    build(tmp_path, study(seeds=[1, 2, 3]))
    live = Live(tmp_path)
    version = live.state()[1].version
    read = []
    monkeypatch.setattr(RunRecord, "read", lambda path: read.append(path))
    assert live.asked(version)["unchanged"]
    assert read == []
    monkeypatch.undo()
    (tmp_path / "runs" / "default-none-s1" / "metrics.jsonl").write_text("garbage")
    live.state()
    assert "default-none-s1/metrics.jsonl" in live.page()


def test_of_very_many_warnings_the_rest_is_counted(tmp_path: Path, monkeypatch):
    build(tmp_path, study(seeds=list(range(1, 7))), outcomes=lambda v, r, s: None)
    monkeypatch.setattr("ablationlab.report.live.MOST_WARNINGS", 5)
    _, state = Live(tmp_path).state()
    assert [warning.text for warning in state.warnings][5:] == ["+ 7"]
