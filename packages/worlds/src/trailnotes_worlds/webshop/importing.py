"""Import of the original's files into a catalogue, entry by entry, with a report of what it leaves out."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trailnotes.errors import ConfigError
from trailnotes.storage.files import encode_line
from trailnotes_worlds.search.mapped import write_folder
from trailnotes_worlds.webshop.catalogue import PRODUCTS, REPORT, Catalogue, encode_product, finalize_catalogue
from trailnotes_worlds.webshop.nouns import Tagger, make_noun_tagger
from trailnotes_worlds.webshop.products import Instruction, ProductError, parse_human, parse_product
from trailnotes_worlds.webshop.reading import JsonEntry, read_entries

PROGRESS_INTERVAL = 1000  # products between two reports of progress

Progress = Callable[[str, float, float], None]  # (stage, amount done, total)


@dataclass(frozen=True)
class SourceFiles:
    """Source files of an import, of which only the products are required."""

    products: Path  # items_shuffle: a list, or a line each
    attributes: Path | None = None  # items_ins: asin -> attributes, and the synthetic instruction
    human: Path | None = None  # items_human_ins: asin -> instructions, or a line each
    order: Path | None = None  # human_goals: the texts of the human goals in the original's order

    def describe_files(self) -> dict[str, list[Any]]:
        """Map each role to name and size of its file. Raises `ConfigError` if one is missing."""
        try:
            return {role: [path.name, path.stat().st_size] for role, path in vars(self).items() if path is not None}
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def import_catalogue(
    folder: Path,
    sources: SourceFiles,
    *,
    limit: int | None = None,
    nouns: Tagger = "rules",
    progress: Progress | None = None,
) -> Catalogue:
    """Import a catalogue into a new folder, whole or not at all, and open it.

    Args:
        folder: new folder.
        sources: files of the original, or of the 1,000-product index.
        limit: number of entries to read; None reads all.
        nouns: tagger of the noun tokens of titles.
        progress: called with stage, amount done and total.

    Raises:
        ConfigError: `folder` is taken, or a source is missing, cut off, no JSON, or of another kind.
        MissingExtraError: `nouns` is "spacy", which is not installed.
        RunError: the disk is full.
    """
    files, tagger, report = sources.describe_files(), make_noun_tagger(nouns), progress or (lambda *_: None)
    with write_folder(folder) as made:
        with (made / PRODUCTS).open("wb") as products, (made / REPORT).open("wb") as left_out:
            importer = _Importer(sources, tagger, products, left_out)
            importer.run(limit, report)
            size = products.tell()
        facts: dict[str, Any] = {"again": "import it again", "sources": files, "limit": limit, "nouns": nouns}
        facts |= {"entries": importer.num_entries, "left_out": importer.left_out}
        finalize_catalogue(made, facts, lambda done: report("index", done, size))
    return Catalogue.open(folder)


class _Importer:
    def __init__(
        self, sources: SourceFiles, tagger: Callable[[str], tuple[str, ...]], products: BinaryIO, report: BinaryIO
    ) -> None:
        self._sources, self._tagger, self._products, self._report = sources, tagger, products, report
        self.num_entries, self.left_out = 0, Counter[str]()  # entries read, good or bad; reason -> number
        self._asins: set[str] = set()
        self._attributes: dict[str, bytes] = {}  # as JSON, which is a fraction of the objects
        self._humans: dict[str, list[Instruction]] | None = None
        self._is_ordered = sources.order is not None  # whether human instructions have places in the original's order

    def run(self, limit: int | None, report: Progress) -> None:
        """Read all sources, of the products the first `limit`. Raises `ConfigError` if there is no product."""
        self._read_attributes()
        self._read_human()
        size = self._sources.products.stat().st_size
        for entry in islice(read_entries(self._sources.products), limit):
            self._import_entry(entry)
            self.num_entries += 1
            if self.num_entries % PROGRESS_INTERVAL == 0:
                report("read", self.num_entries if limit else entry.taken, limit or size)
        if not self._asins:
            faults = ", ".join(f"{count:,} x {reason}" for reason, count in sorted(self.left_out.items()))
            raise ConfigError(f"{self._sources.products} holds no product: {faults or 'it is empty'}")
        for asin, instructions in (self._humans or {}).items():
            if asin not in self._asins:  # counted and not listed: their product is missing, not they
                self.left_out["instruction of no product"] += len(instructions)

    def _read_attributes(self) -> None:
        if not self._sources.attributes:
            return
        for entry in read_entries(self._sources.attributes):
            if entry.key is not None and isinstance(entry.value, dict):
                self._attributes[entry.key] = json.dumps(entry.value).encode()
            else:
                self._leave_out("bad attributes", entry.key, "no object of an asin")
        _require_entries(self._sources.attributes, self._attributes, "attributes", "items_ins_v2.json")

    def _read_human(self) -> None:
        if not self._sources.human:
            return
        find_place = _make_place_lookup(self._sources.order)
        self._humans = defaultdict(list)
        for asin, listed in _iter_human_entries(self._sources.human):
            try:
                instruction = parse_human(listed)
            except ProductError as fault:
                self._leave_out(fault.reason, asin, fault.detail)
                continue
            order = find_place(instruction.text) if instruction.order is None else instruction.order
            self._humans[asin].append(replace(instruction, order=order))
            self._is_ordered |= order is not None
        _require_entries(self._sources.human, self._humans, "human", "items_human_ins.json")

    def _import_entry(self, entry: JsonEntry) -> None:
        record = entry.value
        asin = record.get("asin") if isinstance(record, dict) else None
        asin = asin if isinstance(asin, str) else None
        if isinstance(record, ValueError):
            self._leave_out("no JSON", asin, str(record))
            return
        if asin in self._asins:
            self._leave_out("asin twice", asin, "")
            return
        try:
            extra = json.loads(self._attributes.get(asin or "", b"{}"))
            humans = None if self._humans is None else self._humans.get(asin or "", [])
            product = parse_product(record, extra, humans, self._tagger)
        except ProductError as fault:
            self._leave_out(fault.reason, asin, fault.detail)
            return
        self._asins.add(product.asin)
        self._products.write(encode_product(product))
        for item in product.instructions:
            if self._is_ordered and item.kind == "human" and item.order is None:
                self._leave_out("instruction without a place in the order", asin, item.text)

    def _leave_out(self, reason: str, asin: str | None, detail: str) -> None:
        self.left_out[reason] += 1
        entry = {"entry": self.num_entries, "asin": asin, "reason": reason, "detail": detail}
        self._report.write(encode_line(entry))


def _require_entries(path: Path, entries: Mapping[str, Any], option: str, wanted: str) -> None:
    if not entries:
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

    def take_place(text: str) -> int | None:
        left = places.get(_normalize_text(text))
        return left.popleft() if left else None

    return take_place


def _normalize_text(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())
