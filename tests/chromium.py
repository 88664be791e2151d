"""A real browser, driven over the pipe of its own debugging protocol; nothing but Chromium itself is needed.

The protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FOUND = os.environ.get("TRAILNOTES_TEST_CHROMIUM") or shutil.which("chromium")
PATIENCE_S = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_BECOME = """
import os, sys
ours = [os.dup(int(word)) for word in sys.argv[1:3]]
for theirs, own in zip((3, 4), ours):  # where the browser looks for its pipe
    os.dup2(own, theirs)
    os.set_inheritable(theirs, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
needed = pytest.mark.skipif(FOUND is None, reason="needs a browser: apt-get install chromium")


LEFT = ("navigated or closed", "context was destroyed", "Cannot find context")  # said of a page that a script outlived


class PageLeftError(Exception):
    """The page went to another while it was asked."""


class Browser:
    """One page of a browser that lives as long as this. `trouble` is what it complained about, `asked` what it loaded.

    Args:
        profile: a new folder for what the browser keeps.
    """

    def __init__(self, profile: Path) -> None:
        self.trouble: list[str] = []
        self.asked: list[str] = []
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [str(FOUND), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        for theirs in (theirs_in, theirs_out):
            os.close(theirs)
        self._pending, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def close(self) -> None:
        for own in (self._out, self._in):
            os.close(own)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; what happens meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self._number:
                if any(words in heard.get("error", {}).get("message", "") for words in LEFT):
                    raise PageLeftError
                assert "error" not in heard, heard
                result: dict[str, Any] = heard["result"]
                return result

    def go(self, url: str) -> None:
        """Open a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(PageLeftError):
                if self.run(script):
                    return
            assert time.monotonic() < end, f"never became true: {script}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = key if len(key) == 1 and kind == "keyDown" else ""
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has gone"
            self._pending += more
        first, _, self._pending = self._pending.partition(b"\0")
        heard: dict[str, Any] = json.loads(first)
        self._note(heard.get("method", ""), heard.get("params", {}))
        return heard

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Log.entryAdded":
            self.trouble.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        ):
            self.trouble.append(json.dumps(params))
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
