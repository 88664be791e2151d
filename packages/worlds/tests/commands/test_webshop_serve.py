"""`trailnotes webshop serve`: a purchase over a real socket, and what is wrong is said before anybody may come."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from shelves import DOZEN
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config, to_toml
from trailnotes.storage.demonstrations import read_demonstrations
from trailnotes_worlds.commands.webshop import build_token_counter
from trailnotes_worlds.webshop.writing import write_catalogue


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("catalogues") / "dozen"
    write_catalogue(folder, DOZEN.products).close()
    return str(folder)


@pytest.fixture(scope="module")
def site(shop: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, subprocess.Popen[str]]]:
    """(port, file that is recorded to, process)"""
    record = tmp_path_factory.mktemp("played") / "played.jsonl"
    words = [sys.executable, "-m", "trailnotes", "webshop", "serve", shop, "--port", "0", "--record", str(record)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = re.fullmatch(r"ready: http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
            assert ready
            yield int(ready[1]), record, process
        finally:
            process.kill()


class Visitor:
    """Sends forms as a browser does, and keeps the cookie. Used as `with Visitor(port) as visitor`."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"origin": f"http://127.0.0.1:{port}", "content-type": "application/x-www-form-urlencoded"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, **fields: str) -> tuple[int, str]:
        self.connection.request(method, path, urlencode(fields) if method == "POST" else None, self.headers)
        answer = self.connection.getresponse()
        if cookie := answer.headers["set-cookie"]:
            self.headers["cookie"] = cookie.partition(";")[0]
        text = answer.read().decode()
        if answer.status == 303:
            return self.ask("GET", answer.headers["location"])
        return answer.status, text


def test_a_purchase_over_a_real_socket(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    port, record, _ = site
    with Visitor(port) as visitor:
        assert visitor.ask("POST", "/begin", goal="0")[0] == 200
        assert "B0MUG00001" in visitor.ask("POST", "/act", at="0", query="mug")[1]
        visitor.ask("POST", "/act", at="1", action="click[b0mug00001]")
        assert "Thank you for shopping" in visitor.ask("POST", "/act", at="2", action="click[buy now]")[1]
        assert "of 1" in visitor.ask("GET", "/score")[1]
    (played,) = read_demonstrations(record, "warmstart.demonstrations")
    said = [message.content for message in played.messages if message.role == "assistant"]
    assert said == ["search[mug]", "click[b0mug00001]", "click[buy now]"]


def test_garbage_on_the_socket_is_answered_and_forgotten(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    port, _, process = site
    for garbage in (b"\x00\xff\x16\x03\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000,
                    b"POST /act HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -5\r\n\r\n"):  # fmt: skip
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(garbage)
            assert connection.recv(1000).startswith(b"HTTP/1.1 4")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:  # goes in the middle of a form
        host = "host: 127.0.0.1\r\norigin: http://127.0.0.1\r\n"
        connection.sendall(f"POST /begin HTTP/1.1\r\n{host}content-length: 100\r\n\r\ngoal=".encode())
    with Visitor(port) as visitor:
        assert visitor.ask("HEAD", "/") == (200, "")
        assert visitor.ask("POST", "/begin", goal="9" * 100_000)[0] == 413
    assert process.poll() is None


def test_control_c_ends_it(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    process = site[2]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stdout
    assert process.stderr
    assert (process.stdout.read(), process.stderr.read()) == ("the shop is closed\n", "")


# -- refused before anything listens


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["webshop", "serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "shop.example", ""])
def test_other_machines_are_let_in_only_on_purpose(shop: str, capsys: pytest.CaptureFixture[str], host: str) -> None:
    assert "add --public if that is meant" in refused(capsys, shop, "--host", host)


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]")])
def test_the_site_answers_to_its_address_and_to_no_empty_name(
    shop: str, monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no address ::1")
    apps: list[Any] = []
    monkeypatch.setattr("trailnotes.web.serving.serve", lambda app, *_, **__: apps.append(app))
    assert main(["webshop", "serve", shop, "--host", host, "--port", "0"]) == 0
    client = TestClient(apps[0], base_url=f"http://{name}:8000")
    asked = {header: client.get("/", headers={"host": header}).status_code for header in (f"{name}:8000", "", ":8000")}
    assert asked == {f"{name}:8000": 200, "": 421, ":8000": 421}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_port_that_is_taken(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(capsys, shop, "--port", port)
    assert f"nothing can listen at 127.0.0.1:{port} (Address already in use)" in line
    assert "--port 99999 is none" in refused(capsys, shop, "--port", "99999")


@pytest.mark.parametrize("goal", ["-1", "1000"])
def test_a_goal_that_is_none(shop: str, capsys: pytest.CaptureFixture[str], goal: str) -> None:
    assert re.search(rf"--goal {goal}: split 'train' has goals 0 to \d+", refused(capsys, shop, "--goal", goal))


def test_a_catalogue_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert str(tmp_path) in refused(capsys, str(tmp_path))


def test_a_split_that_is_none(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "split 'evening' is unknown" in refused(capsys, shop, "--split", "evening")


@pytest.mark.parametrize("split", ["test", "validation"])
def test_what_is_examined_is_not_recorded(
    shop: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, split: str
) -> None:
    file = tmp_path / "played.jsonl"
    line = refused(capsys, shop, "--port", "0", "--split", split, "--record", str(file))
    assert f"split {split!r} is for evaluation: leave out --record or --split" in line
    assert not file.exists()


def test_a_config_of_another_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(Config()))
    line = refused(capsys, "--config", str(tmp_path / "config.toml"))
    assert "env.name = 'waymarks': only webshop has a site" in line


def test_an_option_that_is_none(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "env.options.compatt: webshop has no such option" in refused(capsys, shop, "--env.options.compatt", "fixed")


def test_a_file_of_something_else_is_not_recorded_to(
    shop: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "diary.txt").write_text("Dear diary")
    line = refused(capsys, shop, "--port", "0", "--record", str(tmp_path / "diary.txt"))
    assert "the first line of" in line
    assert "is no demonstration: choose another file to record to" in line


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("path", ["", "random", "runs/still-to-be-made", "still/to/be/made"])
def test_a_play_can_be_recorded_before_there_is_a_model(path: str) -> None:
    count = build_token_counter(load_config(None, ["--model.path", path]))
    assert count("find me a mug") == 4


def test_a_file_that_cannot_be_recorded_to(shop: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "choose another file" in refused(capsys, shop, "--port", "0", "--record", str(tmp_path))
