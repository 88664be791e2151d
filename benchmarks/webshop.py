"""The shop: how fast a query is, and a step; how fast a catalogue opens; what a second process holds that is its own.

The catalogue is the synthetic one, or `--catalogue FOLDER`. `--products N` makes one of N products first, with a text
of the length of real ones: each gets words drawn from a vocabulary of two million by Zipf's law, so that frequent terms
are as frequent, and rare ones as many, as in a real shop. Times are wall times of one process, medians; CPU times
stand beside them, since the machine may be busy. A step is one of a random player, admissible actions included.

    python benchmarks/webshop.py --json webshop.json
    python benchmarks/webshop.py --products 100000
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from shared import finish, in_a_process, make_parser, peak_mb, print_table

if sys.path[0] == str(Path(__file__).parent):  # this file would be found in place of the package of its name
    del sys.path[0]

from trailnotes.types import Task
from trailnotes_worlds.webshop.catalogue import Catalogue, write_catalogue
from trailnotes_worlds.webshop.env import WebShopEnv
from trailnotes_worlds.webshop.goals import NO_LIMIT, Goal
from trailnotes_worlds.webshop.products import Product
from trailnotes_worlds.webshop.synthetic import make_products, open_catalogue

SMALL = 10_000  # products: up to here the small limits hold
CEILINGS = {"query_ms": 2.0, "open_ms": 1000.0, "rss_second_worker_mb": 60.0}
STEPS = 2000.0  # a second, at least, with SMALL products
LARGE_CEILINGS = {"query_ms": 15.0, "open_ms": 3000.0, "rss_second_worker_mb": 300.0}
VOCABULARY, WORDS = 2_000_000, 80  # words that a shop may use; of them in each description
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
BLOCK = 20_000  # products whose seed is the same


def word(rng: random.Random) -> str:
    """A made-up word; the k-th most frequent has a probability of about 1/k."""
    number, text = int(math.exp(rng.random() * math.log(VOCABULARY))), ""
    while number:
        number, syllable = divmod(number, len(SYLLABLES))
        text += SYLLABLES[syllable]
    return text


def products(count: int) -> Iterator[Product]:
    """`count` products with texts as long as real ones."""
    rng = random.Random(0)
    for place in range(0, count, BLOCK):
        for number, product in enumerate(make_products(min(BLOCK, count - place), seed=place)):
            text = " ".join(word(rng) for _ in range(WORDS))
            yield replace(product, asin=f"B{place + number:09X}", description=f"{product.description} {text}")


def bare(made: Iterable[Product]) -> Iterator[Product]:
    """The same products, which nobody looks for."""
    return (replace(product, instructions=()) for product in made)


def queries(catalogue: Catalogue, count: int) -> list[str]:
    """What buyers may ask: the kind and attributes of a product, and some words of any description."""
    rng = random.Random(1)
    found = []
    for _ in range(count):
        product = catalogue.at(rng.randrange(len(catalogue)))
        words = product.search_text.split()
        words = rng.sample(words, min(6, len(words)))
        found.append(f"i am looking for {product.query} that are {' and '.join(product.attributes)} {' '.join(words)}")
    return found


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a call: on the clock, and of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def clocked(made: Iterator[Product], spent: list[float]) -> Iterator[Product]:
    """The same products; `spent` is told the CPU seconds of making each thousand."""
    while True:
        start = time.process_time()
        some = list(islice(made, 1000))
        spent.append(time.process_time() - start)
        if not some:
            return
        yield from some


def second_worker(folder: str) -> dict[str, float]:
    """Work on the catalogue as another process does that has it open; what this one alone then holds."""
    with closing(Catalogue.open(folder)) as catalogue:
        for query in queries(catalogue, 200):
            for asin in catalogue.search(query)[:10]:
                assert catalogue[asin].asin == asin
        smaps = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
        own = sum(int(kb) for kb in re.findall(r"^Private_\w+:\s+(\d+) kB", smaps, re.MULTILINE))
        anonymous = sum(int(kb) for kb in re.findall(r"^Anonymous:\s+(\d+) kB", smaps, re.MULTILINE))
        return {"own_mb": own / 1024, "anonymous_mb": anonymous / 1024}


def played(folder: Path, count: int) -> None:
    """`count` steps or some more, by a player that draws from the admissible actions."""
    rng, env, done = random.Random(2), WebShopEnv(catalogue=str(folder)), 0
    with closing(Catalogue.open(folder)) as catalogue:
        places = [rng.randrange(len(catalogue)) for _ in range(500)]
        goals = [(product, f"Find me {product.query}") for product in map(catalogue.at, places)]
    tasks = [
        Task(text, "webshop", options=Goal(product.asin, text, product.attributes, (), NO_LIMIT).to_json())
        for product, text in goals
        if product.attributes
    ]
    while done < count:
        observation = env.reset(rng.choice(tasks))
        while not observation.done:
            observation, done = env.step(rng.choice(observation.actions or ())), done + 1


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    """The figures of one catalogue."""
    opened = [timed(lambda: Catalogue.open(folder).close()) for _ in range(5)]
    with closing(Catalogue.open(folder)) as catalogue:
        asked = queries(catalogue, repeats)
        for query in asked[:20]:
            catalogue.search(query)
        times = [timed(lambda query=query: catalogue.search(query)) for query in asked]
        worker = in_a_process(__file__, "--second-worker", str(folder))
        num_steps = 10 * repeats
        played(folder, num_steps)  # fills what is kept
        wall, cpu = timed(lambda: played(folder, num_steps))
        return {
            "products": len(catalogue),
            "catalogue_mb": catalogue.meta["bytes"] / 1e6,
            "query_ms": statistics.median(wall for wall, _ in times),
            "query_cpu_ms": statistics.median(cpu for _, cpu in times),
            "query_cpu_ms_p95": statistics.quantiles((cpu for _, cpu in times), n=20)[-1],
            "open_ms": statistics.median(wall for wall, _ in opened),
            "rss_second_worker_mb": worker["own_mb"],
            "rss_second_worker_anonymous_mb": worker["anonymous_mb"],
            "steps_per_s": 1000 * num_steps / wall,
            "steps_per_cpu_s": 1000 * num_steps / cpu,
        }


def report(result: dict[str, Any]) -> None:
    """The table."""
    ceilings = CEILINGS if result["products"] <= SMALL else LARGE_CEILINGS
    limits = {name: f"at most {ceiling:g}" for name, ceiling in ceilings.items()}
    if result["products"] <= SMALL:
        limits["steps_per_s"] = f"at least {STEPS:g}"
    rows = [
        (name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}", limits.get(name, ""))
        for name, value in result.items()
    ]
    print_table(f"WebShop, {result['products']:,} products", ("figure", "value", "limit"), rows)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, "fewer queries")
    parser.add_argument("--catalogue", type=Path, metavar="FOLDER", help="an imported catalogue")
    parser.add_argument("--products", type=int, metavar="N", help="make a catalogue of N products, and measure that")
    parser.add_argument("--second-worker", metavar="FOLDER", help="(for the benchmark itself)")
    args = parser.parse_args()
    if args.second_worker:
        print(json.dumps(second_worker(args.second_worker)))
        return
    repeats = 50 if args.quick else 500
    if not args.products:
        with closing(open_catalogue(args.catalogue or "synthetic")) as catalogue:
            folder = catalogue.folder
        finish(measure(folder, repeats), report, args.json)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shop"
        making: list[float] = []
        both = timed(lambda: write_catalogue(folder, clocked(bare(products(args.products)), making)).close())[1] / 1000
        built = {"build_cpu_s": both - sum(making), "build_peak_mb": peak_mb()}
        finish(measure(folder, repeats) | built, report, args.json)


if __name__ == "__main__":
    main()
