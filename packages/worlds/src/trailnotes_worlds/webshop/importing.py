"""Import of the original's files into a catalogue: entry by entry, resumable, with a report of what it leaves out.

It appends products to a folder beside the final one, and saves its state every few thousand. Whatever ends the import,
the same command resumes from that state.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.files import encode_line, open_no_follow, parse_json, write_text_atomic
from trailnotes_worlds.search.mapped import require_free
from trailnotes_worlds.webshop.catalogue import PRODUCTS, REPORT, Catalogue
from trailnotes_worlds.webshop.nouns import Tagger, make_noun_tagger
from trailnotes_worlds.webshop.products import Instruction, ProductError, parse_human, parse_product
from trailnotes_worlds.webshop.reading import JsonEntry, read_entries
from trailnotes_worlds.webshop.writing import encode_product, finalize_catalogue

STATE_FILE = "state.json"
SAVE_INTERVAL = 5000  # products between two states

Progress = Callable[[str, float, float], None]  # (stage, amount done, total)


@dataclass(frozen=True)
class SourceFiles:
    """Source files of an import, of which only the products are required."""

    products: Path  # items_shuffle: a list, or a line each
    attributes: Path | None = None  # items_ins: asin -> attributes, and the synthetic instruction
    human: Path | None = None  # items_human_ins: asin -> instructions, or a line each
    order: Path | None = None  # human_goals: the texts of the human goals in the original's order

    def describe_files(self) -> dict[str, list[Any]]:
        """Map each role to name, size and modification time of its file. Raises `ConfigError` if one is missing."""
        given = {role: path for role, path in asdict(self).items() if path is not None}
        try:
            stats = {role: path.stat() for role, path in given.items()}
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        return {role: [path.name, stats[role].st_size, stats[role].st_mtime_ns] for role, path in given.items()}


@dataclass
class ImportState:
    """State of an import, saved and resumed."""

    inputs: dict[str, Any]  # other inputs begin anew
    offset: int = 0  # bytes read of the products' source
    entries: int = 0  # read of it, good or bad
    products: int = 0
    product_bytes: int = 0
    report_bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    is_read: bool = False  # the source to its end


def import_catalogue(
    folder: Path,
    sources: SourceFiles,
    *,
    limit: int | None = None,
    nouns: Tagger = "rules",
    progress: Progress | None = None,
) -> Catalogue:
    """Import a catalogue into a new folder, and open it.

    Args:
        folder: new folder; an interrupted import waits beside it as ``.NAME.partial`` and is resumed.
        sources: files of the original, or of the 1,000-product index.
        limit: number of entries to read; None reads all.
        nouns: tagger of the noun tokens of titles.
        progress: called with stage, amount done and total.

    Raises:
        ConfigError: `folder` is taken, or a source is missing, cut off, no JSON, or of another kind.
        MissingExtraError: `nouns` is "spacy", which is not installed.
        RunError: the disk is full, or another process imports into `folder`; finished work is kept.
    """
    require_free(folder)
    inputs = {"sources": sources.describe_files(), "limit": limit, "nouns": nouns}
    tagger, tell = make_noun_tagger(nouns), progress or (lambda *_: None)
    aside = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock_folder(folder, aside):
            aside.mkdir(exist_ok=True)
            state = _load_state(aside, inputs)
            if not state.is_read:
                _Importer(aside, sources, state, tagger).run(limit, tell)
            if not state.products:
                faults = ", ".join(f"{count:,} x {reason}" for reason, count in sorted(state.left_out.items()))
                raise ConfigError(f"{sources.products} holds no product: {faults or 'it is empty'}")
            facts = {"again": "import it again", **state.inputs, "entries": state.entries, "left_out": state.left_out}
            facts["sources"] = {role: fact[:2] for role, fact in state.inputs["sources"].items()}
            finalize_catalogue(aside, facts, lambda done: tell("index", done, state.product_bytes))
            aside.replace(folder)
            (folder / STATE_FILE).unlink()  # no sooner: without it, an interrupted import would begin anew
    except OSError as error:
        fix = "free space or fix the permissions, then run the same command again: it goes on from here"
        raise RunError(f"cannot write {error.filename or aside} ({error.strerror or error}): {fix}") from error
    return Catalogue.open(folder)


class _Importer:
    def __init__(
        self, folder: Path, sources: SourceFiles, state: ImportState, tagger: Callable[[str], tuple[str, ...]]
    ) -> None:
        self._folder, self._sources, self._state, self._tagger = folder, sources, state, tagger
        self._left_out = Counter(state.left_out)
        self._is_ordered = sources.order is not None  # whether human instructions have places in the original's order

    def run(self, limit: int | None, tell: Progress) -> None:
        """Read on to the end of the products, or to the `limit`-th."""
        state, size = self._state, self._sources.products.stat().st_size
        with (self._folder / PRODUCTS).open("ab") as self._products, (self._folder / REPORT).open("ab") as self._report:
            self._products.truncate(state.product_bytes)  # keep only the part that the state counts
            self._report.truncate(state.report_bytes)
            with (self._folder / PRODUCTS).open("rb") as file:  # an asin is the first field of its line
                self._asins = {line[: line.index(b",")].partition(b":")[2].strip(b'"').decode() for line in file}
            self._read_other_sources(is_new=not state.entries)
            entries = read_entries(self._sources.products, state.offset)
            for entry in islice(entries, None if limit is None else limit - state.entries):
                self._import_entry(entry)
                state.offset, state.entries = entry.end, state.entries + 1
                if state.entries % SAVE_INTERVAL == 0:
                    self._save_state()
                    tell("read", state.entries if limit else entry.taken, limit or size)
            for asin, instructions in (self._humans or {}).items():
                if asin not in self._asins:  # counted and not listed: their product is missing, not they
                    self._left_out["instruction of no product"] += len(instructions)
            state.is_read = True
            self._save_state()

    def _read_other_sources(self, *, is_new: bool) -> None:
        """Read the other sources by asin, and report their faults once."""
        self._attributes: dict[str, bytes] = {}  # as JSON, which is a fraction of the objects
        self._humans: dict[str, list[Instruction]] | None = None
        report = self._report_left_out if is_new else None
        if self._sources.attributes:
            for entry in read_entries(self._sources.attributes):
                if entry.key is not None and isinstance(entry.value, dict):
                    self._attributes[entry.key] = json.dumps(entry.value).encode()
                elif report:
                    report("bad attributes", entry.key, "no object of an asin")
            _require_entries(self._sources.attributes, self._attributes, "attributes", "items_ins_v2.json")
        if self._sources.human:
            places = _make_place_lookup(self._sources.order)
            self._humans = defaultdict(list)
            for asin, listed in _iter_human_entries(self._sources.human):
                try:
                    instruction = parse_human(listed)
                    order = places(instruction.text) if instruction.order is None else instruction.order
                    self._humans[asin].append(replace(instruction, order=order))
                    self._is_ordered |= order is not None
                except ProductError as fault:
                    if report:
                        report(fault.reason, asin, fault.detail)
            _require_entries(self._sources.human, self._humans, "human", "items_human_ins.json")

    def _import_entry(self, entry: JsonEntry) -> None:
        """Add the product of an entry, or report why it is none."""
        record = entry.value
        asin = record.get("asin") if isinstance(record, dict) else None
        asin = asin if isinstance(asin, str) else None
        if isinstance(record, ValueError):
            self._report_left_out("no JSON", asin, str(record))
            return
        if asin in self._asins:
            self._report_left_out("asin twice", asin, "")
            return
        try:
            extra = json.loads(self._attributes.get(asin or "", b"{}"))
            humans = None if self._humans is None else self._humans.get(asin or "", [])
            product = parse_product(record, extra, humans, self._tagger)
        except ProductError as fault:
            self._report_left_out(fault.reason, asin, fault.detail)
            return
        self._asins.add(product.asin)
        self._products.write(encode_product(product))
        self._state.products += 1
        for item in product.instructions:
            if self._is_ordered and item.kind == "human" and item.order is None:
                self._report_left_out("instruction without a place in the order", asin, item.text)

    def _report_left_out(self, reason: str, asin: str | None, detail: str) -> None:
        self._left_out[reason] += 1
        entry = {"entry": self._state.entries, "asin": asin, "reason": reason, "detail": detail}
        self._report.write(encode_line(entry))

    def _save_state(self) -> None:
        for file in (self._products, self._report):
            file.flush()
            os.fsync(file.fileno())
        self._state.product_bytes, self._state.report_bytes = self._products.tell(), self._report.tell()
        self._state.left_out = dict(self._left_out)
        write_text_atomic(self._folder / STATE_FILE, json.dumps(asdict(self._state)))


def _load_state(folder: Path, inputs: dict[str, Any]) -> ImportState:
    inputs = json.loads(json.dumps(inputs))
    try:
        state = ImportState(**parse_json((folder / STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return ImportState(inputs)
    return state if state.inputs == inputs else ImportState(inputs)


@contextmanager
def _lock_folder(folder: Path, aside: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file beside it, which stays as long as `aside` waits to be resumed."""
    lock = folder.with_name(f".{folder.name}.lock")
    with os.fdopen(open_no_follow(lock), "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"another process imports into {folder}: wait for it, or name another folder") from error
        try:
            require_free(folder)  # again: the other process may be done by now
            yield
        finally:
            if not aside.exists():
                lock.unlink(missing_ok=True)


def _require_entries(path: Path, found: Mapping[str, Any], option: str, wanted: str) -> None:
    if not found:
        raise ConfigError(f"no entry of {path} is one of {wanted}: give another file to --{option}, or leave it out")


def _iter_human_entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Iterate over (asin, instruction) of items_human_ins, or of the joined list with a line for each."""
    for entry in read_entries(path):
        if entry.key is not None:
            for listed in entry.value if isinstance(entry.value, list) else [None]:  # an object is of items_ins
                yield entry.key, listed
        else:
            asin = entry.value.get("asin") if isinstance(entry.value, dict) else None
            yield str(asin), entry.value


def _make_place_lookup(path: Path | None) -> Callable[[str], int | None]:
    """Make a function from a human instruction to its place in the original's order, which lacks most punctuation.

    Products that share a text take its places one after the other.
    """
    places: dict[str, deque[int]] = defaultdict(deque)
    for place, entry in enumerate(read_entries(path)) if path else ():
        places[_normalize_text(str(entry.value))].append(place)

    def take(text: str) -> int | None:
        found = places.get(_normalize_text(text))
        return found.popleft() if found else None

    return take


def _normalize_text(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())
