"""The catalogue: all products of a shop in one folder, which any number of processes read without a copy.

::

    meta.json            version, name (a hash of the products), sizes and hashes of the files, what was left out
    products.jsonl       a product each, in the order of the import
    product_offsets.npy  where each begins
    asins.npy            all asins, sorted; asin_places.npy: the product of each
    search/              the index over `Product.contents`
    facets/              which products have an attribute, are of a department, or were found by a query
    report.jsonl         what was left out, and why

It is written once, whole or not at all, and never changed: its name says what is in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from trailnotes.errors import ConfigError
from trailnotes.storage.parsing import parse_json
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.mapped import MappedFolder
from trailnotes_worlds.webshop.products import Facet, GoalKind, Product, from_record

KIND, VERSION = "webshop catalogue", 1
PRODUCTS, REPORT = "products.jsonl", "report.jsonl"
ARRAYS = ("product_offsets.npy", "asins.npy", "asin_places.npy")
INDEX_FOLDERS = ("search", "facets")

_CACHE_SIZE = 1024  # products that a process keeps decoded
_MAX_EAGER_HASH_BYTES = 1 << 24  # bytes: a catalogue of no more is compared with its hashes whenever it is opened
_REQUIRED_META = {"name": str, "products": int, "bytes": int, "sha256": dict}  # that ``meta.json`` must tell


class Catalogue:
    """The products of one shop. Open it with `Catalogue.open`; threads and processes may share it.

    ::

        catalogue = Catalogue.open(Path("shop"))
        product = catalogue[catalogue.search("blue mug")[0]]
    """

    def __init__(self, files: MappedFolder) -> None:
        self._files = files
        self._records = files.open_file(PRODUCTS)
        self._offsets = files.map_array("product_offsets.npy").data
        self._asins = files.map_array("asins.npy")
        self._places = files.map_array("asin_places.npy").data
        self._index, self._facets = (SearchIndex.open(files.folder / part) for part in INDEX_FOLDERS)
        self._cached = lru_cache(maxsize=_CACHE_SIZE)(self._read_product)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map the catalogue of a folder.

        Raises:
            ConfigError: it is none, of another version, or a file of it was cut or replaced.
        """
        files = MappedFolder(Path(path), KIND, VERSION, _REQUIRED_META)
        if files.meta["bytes"] <= _MAX_EAGER_HASH_BYTES:
            _validate_hashes(files)
        return cls(files)

    @property
    def name(self) -> str:
        """A hash of all products: the same name, the same shop."""
        return str(self._files.meta["name"])

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self._files.folder

    @property
    def meta(self) -> Mapping[str, Any]:
        """What ``meta.json`` says, among it ``left_out``: reason -> number of records.

        And ``counts``: products of each department, instructions of each kind.
        """
        return self._files.meta

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Product]:
        return map(self._read_product, range(len(self)))  # past the cache, which all of them would flush

    def __contains__(self, asin: object) -> bool:
        return isinstance(asin, str) and self._find_place(asin) is not None

    def __getitem__(self, asin: str) -> Product:
        place = self._find_place(asin)
        if place is None:
            raise KeyError(asin)
        return self.at(place)

    def at(self, place: int) -> Product:
        """The product at a place, counted from 0 in the order of the import.

        Raises:
            IndexError: there is no such place.
            ConfigError: the file was changed while it was in use.
        """
        if not 0 <= place < len(self):
            raise IndexError(f"product {place} of {len(self)}")
        return self._cached(place)

    def search(self, query: str, limit: int = 50) -> list[str]:
        """The asins of the products that a bag of words finds, best first."""
        return [asin for asin, _ in self._index.search(query, limit)]

    def find_by_facet(self, facet: Facet, value: str) -> list[str]:
        """The asins of all products with exactly this attribute, of this department, or found by this query.

        In the order of the import: what the original's ``<a>``, ``<c>`` and ``<q>`` searches give.
        """
        return self._facets.find_by_term(facet_term(facet, value))

    def iter_by_goal_kind(self, kinds: Iterable[GoalKind]) -> Iterator[Product]:
        """The products with an instruction of one of these kinds, in the order of the import.

        No other is decoded, and in a large shop few have one.
        """
        marks = [f'"kind":"{kind}"'.encode() for kind in kinds]  # in a text, quotes are escaped
        lines = map(self._read_line, range(len(self)))
        return (_decode_product(line) for line in lines if any(mark in line for mark in marks))

    def verify(self) -> None:
        """Read every file and compare it with its hash.

        Raises:
            ConfigError: one is not what was written.
        """
        _validate_hashes(self._files)

    def close(self) -> None:
        """Close the files; what is asked for afterwards is a `ValueError`."""
        self._files.close()
        self._index.close()
        self._facets.close()

    def _read_product(self, place: int) -> Product:
        return _decode_product(self._read_line(place))

    def _read_line(self, place: int) -> bytes:
        self._files.require_unchanged()
        start, stop = self._offsets[place], self._offsets[place + 1]
        return os.pread(self._records, stop - start, start)

    def _find_place(self, asin: str) -> int | None:
        try:
            encoded = asin.encode("ascii")
        except UnicodeEncodeError:
            return None
        found = int(np.searchsorted(self._asins, encoded))
        return self._places[found] if found < len(self) and self._asins[found] == encoded else None


def _decode_product(line: bytes) -> Product:
    return from_record(parse_json(line))


def facet_term(facet: Facet, value: str) -> str:
    """The term under which `Catalogue.having` finds products."""
    return f"{facet}:{value}"


def _validate_hashes(files: MappedFolder) -> None:
    for name, digest in files.meta["sha256"].items():
        if hash_file(files.folder / name) != digest:
            again = files.meta.get("again", "make it again")
            raise ConfigError(f"{files.folder / name} is not what was written: {again}")


def hash_file(path: Path) -> str:
    """The SHA-256 of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
