"""Catalogue of all products of a shop in one folder, which any number of processes read without a copy.

::

    meta.json            version, name (a hash of the products), sizes of the files, records left out
    products.jsonl       a product each, in the order of the import
    product_offsets.npy  where each begins
    asins.npy            all asins, sorted; asin_places.npy: the product of each
    search/              the index over `Product.search_text`
    facets/              the products of each attribute, department and query
    report.jsonl         the records that the import left out, with reasons

It is written once, whole or not at all, and never changed: its name is a hash of its contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from trailnotes.storage.files import parse_json
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.mapped import MappedFolder, NamedFolder
from trailnotes_worlds.webshop.products import Facet, GoalKind, Product, from_record

KIND, VERSION = "webshop catalogue", 1
PRODUCTS, REPORT = "products.jsonl", "report.jsonl"
ARRAYS = ("product_offsets.npy", "asins.npy", "asin_places.npy")
INDEX_FOLDERS = ("search", "facets")

_CACHE_SIZE = 1024  # products that a process keeps decoded
_REQUIRED_META = {"name": str, "products": int, "bytes": int}  # that ``meta.json`` must tell


class Catalogue(NamedFolder):
    """Products of one shop. Open it with `Catalogue.open`; threads and processes may share it.

    Its `meta` has ``left_out``: reason -> records, and ``counts`` by department and instruction kind.

    ::

        catalogue = Catalogue.open(Path("shop"))
        product = catalogue[catalogue.search("blue mug")[0]]
    """

    def __init__(self, files: MappedFolder) -> None:
        super().__init__(files)
        self._records = files.open_file(PRODUCTS)
        self._offsets = files.map_array("product_offsets.npy").data
        self._asins = files.map_array("asins.npy")
        self._places = files.map_array("asin_places.npy").data
        self._index, self._facets = (SearchIndex.open(files.folder / part) for part in INDEX_FOLDERS)
        self._cached = lru_cache(maxsize=_CACHE_SIZE)(self._read_product)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Map the catalogue of a folder."""
        return cls(MappedFolder(Path(path), KIND, VERSION, _REQUIRED_META))

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
        """Return the product at a place, from 0 in the order of the import. Raises `IndexError` if there is none."""
        if not 0 <= place < len(self):
            raise IndexError(f"product {place} of {len(self)}")
        return self._cached(place)

    def search(self, query: str, limit: int = 50) -> list[str]:
        return [asin for asin, _ in self._index.search(query, limit)]

    def find_by_facet(self, facet: Facet, value: str) -> list[str]:
        """List the asins of all products with exactly this attribute, department or query, in the order of the import.

        The original's ``<a>``, ``<c>`` and ``<q>`` searches find the same.
        """
        return self._facets.find_by_term(facet_term(facet, value))

    def iter_by_goal_kind(self, kinds: Iterable[GoalKind]) -> Iterator[Product]:
        """Iterate over the products with an instruction of one of these kinds, in the order of the import.

        It decodes no other product, and in a large shop few have an instruction.
        """
        marks = [f'"kind":"{kind}"'.encode() for kind in kinds]  # in a text, quotes are escaped
        lines = map(self._read_line, range(len(self)))
        return (from_record(parse_json(line)) for line in lines if any(mark in line for mark in marks))

    def close(self) -> None:
        self._files.close()

    def _read_product(self, place: int) -> Product:
        return from_record(parse_json(self._read_line(place)))

    def _read_line(self, place: int) -> bytes:
        start, stop = self._offsets[place], self._offsets[place + 1]
        return os.pread(self._records, stop - start, start)

    def _find_place(self, asin: str) -> int | None:
        encoded = asin.encode("ascii", "replace")  # no asin has a question mark
        place = int(np.searchsorted(self._asins, encoded))
        return self._places[place] if place < len(self) and self._asins[place] == encoded else None


def facet_term(facet: Facet, value: str) -> str:
    return f"{facet}:{value}"
