"""The page of a run that goes on: what is served, and what is not."""

import base64
import dataclasses
import hashlib
import http.client
import json
import math
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from millrace.errors import OptionError
from millrace.records.directory import RunDirectory
from millrace.records.loops import EpochRecord, LoopRecord, ProcessRecord
from millrace.records.run import RunRecords
from millrace.reports import follow
from millrace.reports.follow import LiveServer
from millrace.reports.running import outcome_of, run_outcome, run_state

SECRET = "only for the owner"


def process(**fields):
    values = {"process": 0, "pid": os.getpid(), "host": socket.gethostname(), "cores": 1}
    return ProcessRecord(
        **{**values, "began": time.time(), "platform": "cpu", "devices": ("cpu:0",), **fields}
    )


def epoch(number):
    return EpochRecord(loop=0, epoch=number, ended=100.0 + number, logs={"loss": 0.5})


@pytest.fixture
def records(tmp_path):
    (tmp_path / "secret.txt").write_text(SECRET)
    directory = RunDirectory(tmp_path / "run")
    directory.add(process())
    directory.add(LoopRecord(number=0, model="mlp", mode="train", began=100.0))
    return directory


@pytest.fixture
def server(records):
    served = LiveServer(records.path)
    thread = threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join(10)
    assert not thread.is_alive()


def ask(server, path, method="GET", host=None, **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    headers = {"Host": host, **headers} if host is not None else headers
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def raw(server, request, patience=20):
    """Sends bytes, and returns all that comes back."""
    with socket.create_connection(server.server_address[:2], timeout=patience) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_serves_the_page_and_its_state(server):
    outer, text = ask(server, f"/{server.token}/")
    assert outer.status == 200
    assert b"<iframe" not in text  # the script makes it
    policy = outer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    inner, text = ask(server, f"/{server.token}/page.html?version=3")
    assert inner.status == 200
    assert b"<!doctype html>" in text
    assert b"mlp" in text
    assert "connect-src 'none'" in inner.headers["Content-Security-Policy"]
    answer, text = ask(server, f"/{server.token}/state")
    assert answer.headers["Content-Type"] == "application/json"
    state = json.loads(text)
    assert (state["state"], state["title"]) == ("running", "run - running")
    for each in (outer, inner, answer):
        assert each.headers["Cache-Control"] == "no-store"
        assert each.headers["Referrer-Policy"] == "no-referrer"
        assert "Python" not in each.headers["Server"]


def test_listens_to_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", server.url)


def test_the_policy_names_the_style_and_script_that_are_sent(server):
    policy = ask(server, f"/{server.token}/")[0].headers["Content-Security-Policy"]
    text = ask(server, f"/{server.token}/")[1].decode()
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_new_records_arrive(server, records):
    before = json.loads(ask(server, f"/{server.token}/state")[1])["version"]
    records.add(epoch(1))
    server.pages._may_read_at = 0.0  # as if enough time had passed
    after = json.loads(ask(server, f"/{server.token}/state")[1])["version"]
    assert after != before
    assert json.loads(ask(server, f"/{server.token}/state")[1])["version"] == after


def test_reading_takes_a_part_of_the_time_only(server, records):
    server.pages.refresh()
    server.pages._may_read_at = time.monotonic() + 100
    before = server.pages.state()["version"]
    records.add(epoch(1))
    assert server.pages.state()["version"] == before


WRONG = [
    ("/", 404),
    ("/favicon.ico", 404),
    ("/index.html", 404),
    ("/TOKEN", 404),
    ("/TOKEN/other", 404),
    ("/TOKEN/processes.jsonl", 404),
    ("/TOKEN/page.html/", 404),
    ("/TOKEN/../secret.txt", 404),
    ("/TOKEN/..%2fsecret.txt", 404),
    ("/TOKEN/%2e%2e/secret.txt", 404),
    ("/TOKEN//etc/passwd", 404),
    ("/../../../etc/passwd", 404),
    ("/etc/passwd", 403),
    ("/WRONG/", 403),
    ("/WRONG/page.html", 403),
    ("/TOKENx/page.html", 403),
    ("/TOKE/page.html", 403),
    ("/%s%s%n/page.html", 403),
]


@pytest.mark.parametrize(("path", "status"), WRONG)
def test_nothing_else_is_served(server, path, status):
    path = path.replace("TOKEN", server.token).replace("TOKE/", f"{server.token[:-1]}/")
    answer, body = ask(server, path)
    assert answer.status == status
    assert SECRET.encode() not in body
    assert server.token.encode() not in body
    assert b"mlp" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "X"])
def test_only_reading_is_possible(server, records, method):
    before = sorted(path.read_bytes() for path in records.path.iterdir())
    answer, body = ask(server, f"/{server.token}/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert b"mlp" not in body
    assert sorted(path.read_bytes() for path in records.path.iterdir()) == before


def test_head_has_no_body(server):
    answer, body = ask(server, f"/{server.token}/page.html", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.x"])
def test_another_name_for_this_machine_is_refused(server, host):
    """DNS rebinding: a page of evil.example whose name then leads to 127.0.0.1."""
    answer, body = ask(server, f"/{server.token}/page.html", host=host)
    assert answer.status == 403
    assert b"mlp" not in body


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "LOCALHOST:1", "[::1]:8080"])
def test_the_other_end_of_a_tunnel_is_served(server, host):
    assert ask(server, f"/{server.token}/state", host=host)[0].status == 200


def test_requests_that_are_none(server):
    token = server.token.encode()
    host = b"Host: localhost\r\n"
    assert b" 403 " in raw(server, b"GET /" + token + b"/state HTTP/1.1\r\n\r\n")  # no host
    twice = b"GET /" + token + b"/state HTTP/1.1\r\n" + host + b"Host: evil.example\r\n\r\n"
    assert b" 403 " in raw(server, twice)
    assert b" 404 " in raw(server, b"GET http://evil.example/x HTTP/1.1\r\n" + host + b"\r\n")
    assert b" 414 " in raw(server, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
    many = b"".join(b"X-%d: y\r\n" % number for number in range(500))
    assert b" 431 " in raw(server, b"GET / HTTP/1.1\r\n" + many + b"\r\n")
    assert raw(server, b"GET / HTTP/x\r\n\r\n") == b"This is no request that can be answered.\n"
    assert b"token" not in raw(server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")  # TLS
    assert ask(server, f"/{server.token}/state")[0].status == 200  # and it still answers


def test_a_slow_client_does_not_keep_others_waiting(server, monkeypatch):
    monkeypatch.setattr(follow, "_TIMEOUT", 0.5)
    slow = [socket.create_connection(server.server_address[:2], timeout=20) for _ in range(8)]
    for each in slow:
        each.sendall(b"GET /")
    begin = time.monotonic()
    assert ask(server, f"/{server.token}/state")[0].status == 200
    assert time.monotonic() - begin < 5
    for each in slow:
        assert each.recv(100) == b""  # and it was sent away
        each.close()


def test_a_client_that_drips_is_sent_away(server, monkeypatch):
    monkeypatch.setattr(follow, "_TIMEOUT", 0.5)
    with socket.create_connection(server.server_address[:2], timeout=20) as slow:
        begin = time.monotonic()
        while not select.select([slow], [], [], 0.02)[0]:  # until there is its end to read
            assert time.monotonic() - begin < 10
            slow.sendall(b"a")
    assert ask(server, f"/{server.token}/state")[0].status == 200


def test_a_directory_that_vanishes_leaves_the_last_page(server, records):
    assert ask(server, f"/{server.token}/page.html")[0].status == 200
    for path in records.path.iterdir():
        path.unlink()
    server.pages._may_read_at = 0.0
    answer, body = ask(server, f"/{server.token}/state")
    assert answer.status == 200
    assert "has no records of a run" in json.loads(body)["text"]
    assert b"mlp" in ask(server, f"/{server.token}/page.html")[1]


def test_a_port_that_is_taken_is_named(server, records):
    with pytest.raises(OptionError, match=rf"--port {server.server_address[1]} .*Set --port"):
        LiveServer(records.path, server.server_address[1])


def of(*processes):
    return RunRecords(path=pathlib.Path("run"), processes=processes)


def test_whether_a_run_goes_on():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    pid = gone.pid
    while pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    assert run_state(of(process(pid=pid))) == "ended"  # a zombie
    gone.wait()
    assert run_state(of(process(pid=pid))) == "ended"
    assert run_state(of()) == "unknown"
    assert run_state(of(process())) == "running"
    assert run_state(of(process(host="elsewhere"))) == "unknown"
    assert run_state(of(process(), process(process=1, pid=pid))) == "running"
    assert run_state(of(process(pid=pid), process(process=1, pid=pid))) == "ended"
    # Of a run that was started again in the same directory, the later process counts.
    assert run_state(of(process(), process(pid=pid))) == "ended"
    # The number of the process belongs to another one by now.
    assert run_state(of(process(began=time.time() - 1e9))) == "ended"
    assert run_state(of(process(pid=-1))) == "ended"
    assert run_state(of(process(host="elsewhere", ended=time.time()))) == "ended"


GONE, ALIVE, FAR = {"pid": -1}, {}, {"host": "elsewhere"}
FINISHED = {"ended": 300.0, "outcome": "finished"}


@pytest.mark.parametrize(
    ("processes", "last", "of_loop", "of_run"),
    [
        ([GONE], {}, "killed", "killed"),
        ([ALIVE], {}, "running", "running"),
        ([FAR], {}, "running or killed", "running or killed"),
        ([], {}, "running or killed", "running or killed"),
        ([{**FAR, "ended": 400.0}], FINISHED, "finished", "finished"),
        ([ALIVE], FINISHED, "finished", "running"),  # another loop may follow
        ([{**ALIVE, "ended": 400.0}], FINISHED, "finished", "finished"),
        ([GONE], FINISHED, "finished", "finished"),
        ([GONE, {**ALIVE, "began": 500.0}], {}, "killed", "running"),  # it was started again
        ([{**ALIVE, "ended": 400.0}, {**ALIVE, "process": 1}], FINISHED, "finished", "finished"),
    ],
)
def test_how_a_loop_and_its_run_ended(processes, last, of_loop, of_run, monkeypatch):
    monkeypatch.setattr("millrace.reports.running._SLACK", math.inf)  # this process is young
    loop = LoopRecord(number=0, model="mlp", mode="train", began=200.0, **last)
    run = of(*(process(**{"began": 100.0, **each}) for each in processes))
    run = dataclasses.replace(run, loops=(loop,))
    assert (outcome_of(run, loop), run_outcome(run)) == (of_loop, of_run)


PROGRAM = """
import sys, time
import millrace
import keras
import numpy as np
with millrace.Strategy(devices=1, report_dir=sys.argv[1]).scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="mlp")
model.compile("sgd", "mse", steps_per_execution=2)
x = np.ones((8, 4), "float32")
pause = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.1))
model.fit(x, x[:, :1], batch_size=4, epochs=10_000, verbose=0, callbacks=[pause])
"""


@pytest.mark.slow
def test_follows_a_program_until_it_is_killed(tmp_path):
    """The command, as a user runs it: another process trains, is followed, and is killed."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    run = tmp_path / "runs" / "1"
    pipes = {"stdout": subprocess.PIPE, "text": True}
    of_command = [sys.executable, "-c", "from millrace.cli.main import main; main()"]
    with subprocess.Popen([sys.executable, script, run]) as program:
        try:
            while not (run / "epochs.jsonl").exists():
                assert program.poll() is None
                time.sleep(0.1)
            with subprocess.Popen(
                [*of_command, "report", "--follow", run.parent], **pipes
            ) as command:
                follow_until_killed(program, command)
        finally:
            program.kill()


def follow_until_killed(program, command):
    lines = iter(command.stdout.readline, "")
    url = next(line for line in lines if line.startswith("The page is ")).split()[-1]
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", url).groups()
    assert f"ssh -L {port}:127.0.0.1:{port}" in next(lines)

    def fetch(name):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
        connection.request("GET", f"/{token}/{name}")
        return connection.getresponse().read()

    def executions():
        (data,) = re.findall(r'id="data">(.*?)</script>', fetch("page.html").decode())
        return json.loads(data)["runs"][0]["loops"][0]["executions"]

    assert json.loads(fetch("state"))["state"] == "running"
    before = executions()
    while executions() == before:
        time.sleep(0.2)
    assert executions() > before
    program.kill()
    program.wait()
    assert any("The run has ended" in line for line in lines)
    assert json.loads(fetch("state"))["state"] == "ended"
    assert b'"outcome":"killed"' in fetch("page.html")
    command.send_signal(signal.SIGINT)
    assert command.stdout.read() == "Stopped.\n"
    assert command.wait(20) == 0
