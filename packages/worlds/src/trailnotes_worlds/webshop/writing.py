"""Writer of catalogues: it puts the products into a folder beside the final one, indexes them and moves the folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json
from trailnotes_worlds.search.building import IndexBuilder
from trailnotes_worlds.search.mapped import write_folder, write_meta
from trailnotes_worlds.webshop.catalogue import (
    ARRAYS,
    INDEX_FOLDERS,
    KIND,
    PRODUCTS,
    REPORT,
    VERSION,
    Catalogue,
    facet_term,
)
from trailnotes_worlds.webshop.products import Product, from_record, to_record

Report = Callable[[int], None]


def write_catalogue(folder: Path, products: Iterable[Product], facts: Mapping[str, Any] | None = None) -> Catalogue:
    """Write a catalogue, whole or not at all, and open it."""
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
