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

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json
from trailnotes_worlds.search.building import IndexBuilder
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.mapped import MappedFolder, NamedFolder, write_folder, write_meta
from trailnotes_worlds.webshop.products import Facet, GoalKind, Product, from_record, to_record

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


Report = Callable[[int], None]


def write_catalogue(folder: Path, products: Iterable[Product], facts: Mapping[str, Any] | None = None) -> Catalogue:
    with write_folder(folder) as made:
        with (made / PRODUCTS).open("wb") as file:
            file.writelines(map(encode_product, products))
        finalize_catalogue(made, facts or {})
    return Catalogue.open(folder)


def encode_product(product: Product) -> bytes:
    return json.dumps(to_record(product), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def finalize_catalogue(folder: Path, facts: Mapping[str, Any], progress: Report | None = None) -> None:
    """Index the ``products.jsonl`` of a folder, and write its ``meta.json``."""
    offsets, asins, counts = [0], [], Counter[str]()
    with (
        IndexBuilder(folder / INDEX_FOLDERS[0]) as search,
        IndexBuilder(folder / INDEX_FOLDERS[1]) as facets,
        (folder / PRODUCTS).open("rb") as file,
    ):
        for line in file:
            product = from_record(parse_json(line))
            asins.append(product.asin)
            offsets.append(offsets[-1] + len(line))
            search.add(product.asin, product.search_text)
            terms = [facet_term("category", product.category), facet_term("query", product.query)]
            terms += [facet_term("attribute", attribute) for attribute in dict.fromkeys(product.attributes)]
            facets.add_terms(product.asin, terms)
            counts.update((product.category, *(f"{item.kind} instructions" for item in product.instructions)))
            if progress:
                progress(offsets[-1])
        search.finish()
        facets.finish()
    _write_arrays(folder, offsets, asins)
    (folder / REPORT).touch()
    with (folder / PRODUCTS).open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    facts = {"name": name, "products": len(asins), "bytes": size, "counts": counts, **facts}
    write_meta(folder, KIND, VERSION, [PRODUCTS, *ARRAYS], facts)


def _write_arrays(folder: Path, offsets: list[int], asins: list[str]) -> None:
    names = np.array(asins, dtype=bytes)
    places = np.argsort(names, kind="stable")
    names = names[places]
    twice = np.flatnonzero(names[1:] == names[:-1])
    if len(twice):
        raise ConfigError(f"two products have the asin {names[twice[0]].decode()}: leave one out")
    for name, values in zip(ARRAYS, (np.array(offsets, np.int64), names, places), strict=True):
        np.save(folder / name, values)
