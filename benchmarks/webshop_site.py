"""The shop's site under people: so many at a time, each with a visit of their own, searching, looking and buying.

The site is `trailnotes webshop serve` in a process of its own, with our own catalogue. People are coroutines of this
process. Each clicks about once a second (the pause is drawn from 0.5 to 1.5 s), by the buttons of the page that they
got: a purchase takes some eight clicks, then comes the score, and another goal. A click is a form and the page that it
leads to: two requests, timed together, from the first byte sent to the last one read.

    python benchmarks/webshop_site.py --json webshop_site.json
"""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np
from shared import cpu_seconds, finish, make_parser, print_table, resident_mb

from trailnotes_worlds.webshop.goals import split_price_limit

TARGET_MS = 100.0  # of the 95th percentile, on a quiet machine
PAUSE_S = (0.5, 1.5)
_BUTTON = re.compile(r'name="action" value="([^"]*)"')
_AT = re.compile(r'name="at" value="(\d+)"')
_GOAL = re.compile(r'aria-label="What to find">\s*<h2>[^<]*</h2>\s*<p>([^<]*)</p>')


@dataclass
class Tally:
    """What all people together have seen."""

    clicks_ms: list[float] = field(default_factory=list)
    requests_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    purchases: int = 0


class Browser:
    """One connection that is kept, and one cookie."""

    def __init__(self, port: int, tally: Tally) -> None:
        self.port, self.tally = port, tally
        self.cookie = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def click(self, path: str, form: str = "") -> str:
        """Send a form, and read the page that it leads to."""
        start = time.perf_counter()
        status, head, page = await self._request("POST", path, form)
        if status == 303:
            found = re.search(r"location: (\S+)", head)
            status, head, page = await self._request("GET", found[1] if found else "/")
        self.tally.clicks_ms.append(1000 * (time.perf_counter() - start))
        if status != 200:
            raise RuntimeError(f"{path}: status {status}")
        return page

    async def look(self, path: str) -> str:
        """Read a page."""
        status, _, page = await self._request("GET", path)
        if status != 200:
            raise RuntimeError(f"{path}: status {status}")
        return page

    def close(self) -> None:
        """Hang up."""
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _request(self, method: str, path: str, form: str = "") -> tuple[int, str, str]:
        start = time.perf_counter()
        if self._streams is None or self._streams[0].at_eof():
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        host = f"127.0.0.1:{self.port}"
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
        lines += [f"cookie: {self.cookie}"] if self.cookie else []
        if method == "POST":
            kind = "content-type: application/x-www-form-urlencoded"
            lines += [f"origin: http://{host}", kind, f"content-length: {len(form)}"]
        writer.write("\r\n".join([*lines, "", form]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if found := re.search(r"set-cookie: ([^;]+)", head):
            self.cookie = found[1]
        self.tally.requests_ms.append(1000 * (time.perf_counter() - start))
        return int(head.split(maxsplit=2)[1]), head, body.decode()


async def person(port: int, seed: int, end: float, tally: Tally) -> None:
    """Buy one thing after the other until the end."""
    rng, browser = random.Random(seed), Browser(port, tally)
    await asyncio.sleep(rng.uniform(0, PAUSE_S[1]))  # nobody comes at the same moment
    while time.monotonic() < end:
        try:
            await purchase(browser, rng, end)
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            tally.errors.append(f"{type(error).__name__}: {error}")
            browser.close()
    browser.close()


async def purchase(browser: Browser, rng: random.Random, end: float) -> None:
    """One goal: a search, some looking around, options, and the first thing that is bought."""
    page, clicks = await browser.click("/begin"), 0
    goal = _GOAL.search(page)
    words = split_price_limit(html.unescape(goal[1]))[0] if goal else "mug"
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        at = _AT.search(page)
        if at is None:
            raise RuntimeError("a page without a form")
        offers = [html.unescape(value) for value in _BUTTON.findall(page)]
        if not offers:
            page = await browser.click("/act", f"at={at[1]}&query={quote_plus(words)}")
        elif "click[buy now]" in offers and clicks >= 6:
            page = await browser.click("/act", f"at={at[1]}&action={quote_plus('click[buy now]')}")
            if "Your score" not in await browser.look("/score"):
                raise RuntimeError("a purchase without a score")
            browser.tally.purchases += 1
            return
        else:
            around = [offer for offer in offers if offer not in ("click[back to search]", "click[buy now]")]
            page = await browser.click("/act", f"at={at[1]}&action={quote_plus(rng.choice(around))}")
        clicks += 1
        if 'class="notice"' in page:
            raise RuntimeError("something was refused")


@contextmanager
def site() -> Iterator[tuple[int, int]]:
    """(process id, port) of a site."""
    command = [sys.executable, "-m", "trailnotes", "webshop", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            yield process.pid, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)


def busy_seconds() -> float:
    """Seconds that all cores together have worked since the machine started, for whomever."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(people: int, seconds: float) -> dict[str, Any]:
    """All people at once, for so long."""
    tally = Tally()

    async def crowd(port: int) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(person(port, seed, end, tally) for seed in range(people)))

    with site() as (process, port):
        before = (busy_seconds(), cpu_seconds(process), cpu_seconds(), time.perf_counter())
        asyncio.run(crowd(port))
        after = (busy_seconds(), cpu_seconds(process), cpu_seconds(), time.perf_counter())
        resident = resident_mb("VmRSS", process)
    busy, served, clicked, wall = (late - early for late, early in zip(after, before, strict=True))
    return {
        "people": people,
        "seconds": wall,
        "clicks": len(tally.clicks_ms),
        "clicks_per_s": len(tally.clicks_ms) / wall,
        "requests_per_s": len(tally.requests_ms) / wall,
        "purchases": tally.purchases,
        "errors": len(tally.errors),
        "first_errors": tally.errors[:5],
        "click_ms": percentiles(tally.clicks_ms),
        "request_ms": percentiles(tally.requests_ms),
        "target_p95_ms": TARGET_MS,
        "server_ms_per_request": 1000 * served / max(1, len(tally.requests_ms)),
        "server_resident_mb": resident,
        "cores": {"site": served / wall, "people": clicked / wall, "others": (busy - served - clicked) / wall,
                  "all": os.cpu_count()},
    }  # fmt: skip


def percentiles(found: list[float]) -> dict[str, float]:
    """Of milliseconds."""
    return {f"p{rank}": float(np.percentile(found, rank)) for rank in (50, 95, 99)} if found else {}


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    cores = result["cores"]
    print_table(
        f"{result['people']} people for {result['seconds']:.0f} s: {result['clicks_per_s']:.0f} clicks/s, "
        f"{result['requests_per_s']:.0f} requests/s, {result['purchases']} purchases, {result['errors']} errors; cores "
        f"used by the site {cores['site']:.2f}, the people {cores['people']:.2f}, others {cores['others']:.2f} of "
        f"{cores['all']}; {result['server_ms_per_request']:.2f} ms of the site's CPU time a request",
        ("", "p50 ms", "p95 ms", "p99 ms"),
        [(name, *(f"{result[key][rank]:.1f}" for rank in ("p50", "p95", "p99")))
         for name, key in (("a click (form and page)", "click_ms"), ("a request", "request_ms"))],
    )  # fmt: skip
    for error in result["first_errors"]:
        print(error)


def main() -> None:
    """Read the arguments, measure, report."""
    parser = make_parser(__doc__, quick="ten seconds")
    parser.add_argument("--people", type=int, default=200, metavar="N", help="visits at a time (200)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long (60)")
    args: argparse.Namespace = parser.parse_args()
    finish(measure(args.people, 10.0 if args.quick else args.seconds), report, args.json)


if __name__ == "__main__":
    main()
