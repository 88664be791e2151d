"""Export the pages of the window as files, with links between them, that open without a server.

The export follows links from the first page on, as far as the newest episodes and tips of each run; a link that leads
further leads nowhere.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from trailnotes.errors import RunError
from trailnotes.storage.files import write_text_atomic
from trailnotes_lab.view.drawing import ASSETS
from trailnotes_lab.view.pages import render_page
from trailnotes_lab.view.tips import PAGE_SIZE
from trailnotes_lab.view.window import Window, make_url

INDEX_FILE: Final = "index.html"
_DETAIL_PATH: Final = re.compile(r"/run/([^/]+)/(episodes|tips)/(\d+)")
_LIST_PATH: Final = re.compile(r"/run/([^/]+)/(episodes|tips)")
# What the server says in a header, a file says itself.
_CSP_META: Final = (
    '<meta charset="utf-8">\n<meta http-equiv="content-security-policy" content="default-src \'none\'; '
    "style-src 'self' file:; script-src 'self' file:; img-src 'self' file:; base-uri 'none'; form-action 'none'\">"
)


def export_pages(root: Path, folder: Path, limit: int) -> int:
    """Write all pages over `root` to `folder`, of each run the newest `limit` episodes and tips; returns how many."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(f"{folder} is not empty: name a new folder")
        with closing(Window(root, exported=True)) as window:
            for path, (_, text) in ASSETS.items():
                write_text_atomic(folder / path.strip("/"), text)
            links = LinkRegistry(limit)
            links("/")
            while links.waiting:
                path, query = links.waiting.popleft()
                found = window.render(render_page, path, {name: [str(value)] for name, value in query.items()}, links)
                text = found.text.replace('<meta charset="utf-8">', _CSP_META, 1)
                write_text_atomic(folder / links.names[make_url(path, **query)], text)
            return len(links.names)
    except OSError as error:
        raise RunError(f"cannot write {folder} ({error.strerror}): name another folder") from error


class LinkRegistry:
    """Registry of the links of exported pages, and of the pages that they ask for; a `Href`.

    Single episodes and tips are taken in the order in which pages ask for them, `limit` of each run: the lists begin
    with the newest. Links beyond lead to no page.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.names: dict[str, str] = {}  # address -> file
        self.waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._taken: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def __call__(self, path: str, **query: Any) -> str:
        """Get the file that a link leads to, or the top of the same page."""
        if path in ASSETS:
            return path.strip("/")
        query = {name: value for name, value in query.items() if value not in (None, "")}
        address = make_url(path, **query)
        if address not in self.names:
            if not self._accepts(path, query):
                return "#main"
            self.names[address] = make_file_name(path, address)
            self.waiting.append((path, query))
        return self.names[address]

    def _accepts(self, path: str, query: dict[str, Any]) -> bool:
        if query.keys() - {"page", "turn", "metric", "before"}:  # lists that were narrowed: there are too many ways
            return False
        if one := _DETAIL_PATH.fullmatch(path):
            taken = self._taken[one[1], one[2]]
            if len(taken) < self.limit:
                taken.add(one[3])
            return one[3] in taken
        listed = _LIST_PATH.fullmatch(path)
        if listed and "before" in query:
            return len(self._taken[listed[1], listed[2]]) < self.limit
        return not listed or (query.get("page", 1) - 1) * PAGE_SIZE < self.limit


def make_file_name(path: str, address: str) -> str:
    """Make the name of a page's file: its address in harmless letters, and where that is not all of it, a hash."""
    if address == "/":
        return INDEX_FILE
    words = path.strip("/").replace("/", "+")
    if address == path and re.fullmatch(r"[A-Za-z0-9._~+-]{1,150}", words):
        return f"{words}.html"
    harmless = re.sub(r"[^A-Za-z0-9._~+-]+", "-", words)[:80] or "runs"
    return f"{harmless}+{blake2b(address.encode(), digest_size=6).hexdigest()}.html"
