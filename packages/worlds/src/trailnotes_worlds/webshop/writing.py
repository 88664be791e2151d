"""Writing a catalogue: its products are laid into a folder beside the final one, indexed, sealed and moved there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trailnotes.errors import ConfigError, RunError
from trailnotes.storage.parsing import parse_json
from trailnotes_worlds.search.building import IndexBuilder
from trailnotes_worlds.search.mapped import write_meta
from trailnotes_worlds.webshop.catalogue import (
    ARRAYS,
    INDEX_FOLDERS,
    KIND,
    PRODUCTS,
    REPORT,
    VERSION,
    Catalogue,
    facet_term,
    hash_file,
)
from trailnotes_worlds.webshop.products import Product, from_record, to_record

Report = Callable[[int], None]


def write_catalogue(folder: Path, products: Iterable[Product], facts: Mapping[str, Any] | None = None) -> Catalogue:
    """Make `folder` the catalogue of `products`, whole or not at all, and open it.

    Raises:
        ConfigError: there is something in `folder`, or two products have one asin.
        RunError: the disk is full or the place not writable.
    """
    require_free(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            made = Path(aside) / "made"  # with the usual permissions: those of `aside` are for its owner alone
            made.mkdir()
            with (made / PRODUCTS).open("wb") as file:
                file.writelines(map(encode_product, products))
            finalize_catalogue(made, facts or {})
            made.replace(folder)
    except OSError as error:
        raise RunError(
            f"cannot write {folder} ({error.strerror or error}): free space or name another folder"
        ) from error
    return Catalogue.open(folder)


def require_free(folder: Path) -> None:
    """Raise `ConfigError` if `folder` cannot become a catalogue: one is never written over.

    Nor does it take the place of the working directory, which would be gone for whoever stands in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: name another folder, or delete it first")
    if folder.exists() and folder.samefile("."):
        raise ConfigError(f"{folder} is the working directory: name a new folder in it")


def encode_product(product: Product) -> bytes:
    """The line of one product."""
    return json.dumps(to_record(product), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def finalize_catalogue(folder: Path, facts: Mapping[str, Any], progress: Report | None = None) -> None:
    """Index the ``products.jsonl`` of `folder`, and write the ``meta.json`` that makes it a catalogue.

    `progress` is told how many bytes of the products are indexed.

    Raises:
        ConfigError: two products have one asin.
        RunError: the disk is full.
    """
    offsets, asins, counts = [0], [], Counter[str]()
    for part in INDEX_FOLDERS:
        shutil.rmtree(folder / part, ignore_errors=True)
    with IndexBuilder(folder / INDEX_FOLDERS[0]) as search, IndexBuilder(folder / INDEX_FOLDERS[1]) as facets:
        for size, product in _iter_products(folder / PRODUCTS):
            asins.append(product.asin)
            offsets.append(offsets[-1] + size)
            search.add(product.asin, product.search_text)
            facets.add_terms(product.asin, _iter_facet_terms(product))
            counts.update((product.category, *(f"{item.kind} instructions" for item in product.instructions)))
            if progress:
                progress(offsets[-1])
        search.finish()
        facets.finish()
    _write_arrays(folder, offsets, asins)
    (folder / REPORT).touch()
    own = [PRODUCTS, *ARRAYS]
    names = [
        *own,
        REPORT,
        *(str(path.relative_to(folder)) for part in INDEX_FOLDERS for path in sorted((folder / part).iterdir())),
    ]
    hashes = {name: hash_file(folder / name) for name in names}
    facts = {
        "name": hashes[PRODUCTS][:16],
        "products": len(asins),
        "bytes": sum((folder / name).stat().st_size for name in names),
        "counts": counts,
        "sha256": hashes,
        **facts,
    }
    write_meta(folder, KIND, VERSION, own, facts)


def _iter_products(path: Path) -> Iterator[tuple[int, Product]]:
    """(bytes of its line, product) for each."""
    with path.open("rb") as file:
        for line in file:
            yield len(line), from_record(parse_json(line))


def _iter_facet_terms(product: Product) -> Iterator[str]:
    yield facet_term("category", product.category)
    yield facet_term("query", product.query)
    for attribute in dict.fromkeys(product.attributes):
        yield facet_term("attribute", attribute)


def _write_arrays(folder: Path, offsets: list[int], asins: list[str]) -> None:
    names = np.array(asins, dtype=bytes)
    places = np.argsort(names, kind="stable")
    names = names[places]
    twice = np.flatnonzero(names[1:] == names[:-1])
    if len(twice):
        raise ConfigError(f"two products have the asin {names[twice[0]].decode()}: leave one out")
    for name, values in zip(ARRAYS, (np.array(offsets, np.int64), names, places), strict=True):
        np.save(folder / name, values)
