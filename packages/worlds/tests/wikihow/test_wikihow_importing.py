"""Recorded pages become a library; what is none is counted, named and left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes_worlds.wikihow.articles import Article, Author, Category
from trailnotes_worlds.wikihow.importing import PageLink, import_library, parse_page

EGG = """<!doctype html><html><head><title>x</title><script>document.write("<p>not this one, it is a script</p>")
</script><style>p { color: r }</style></head><body><ul id="breadcrumb"><li><a href="/Special:List">Categories</a></li>
<li><a href="/Category:Food">Food</a></li><li><a href="//wikihow.com/Category:Boiled-Eggs">Boiled Eggs</a></ul>
<h1 id="section_0"><a href="/Boil-an-Egg">How to Boil an Egg</a></h1>
<div id="coauthor_byline">by <a class="coauthor_link" href="/Author/Ann-Lee-PhD?x=1">Ann Lee, PhD</a>
<a class="coauthor_link" href="#">Author Info</a></div>
<p>Short.</p><p>An egg wants <b>water</b> &amp; care,<br>and a little time on the stove.
<div class="step"><b class="whb">Heat</b> the water.</div><div class="step">Wait.<script>no()</script></div>
<ol class="references"><li>A book<li><a href="https://example.org/Egg">A page</a></ol>
<div class="responsive_thumb"><a href="/Fry-an-Egg"><p>Fry</p></a></div></body>"""
ANN = """<p>Ann has cooked for more years than anybody can remember.</p><div id="author_articles">
<a href="/Boil-an-Egg"><p class="author_title">Boil an Egg</p></a><a href="//evil.example/x">x</a></div>"""
FOOD = """<div class="responsive_thumb"><a href="/Boil-an-Egg"><div class="responsive_thumb_title"><p>B</p></div></a>"""
META = 'doc_id,thumb_url,sr_view,sr_updated,sr_verif,sha_id\nBoil-an-Egg,,"1,234","June 2, 2021",E,7\n'


def response(html: str, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-encoding: gzip\r\n\r\n"
    return head.encode() + gzip.compress(html.encode())


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "%2fBoil-an-Egg?wh_an=1&amp=1").write_bytes(response(EGG))
    (folder / "%2fAuthor%2fAnn-Lee-PhD?wh_an=1&amp=1").write_bytes(response(ANN))
    (folder / "%2fCategory:Food?wh_an=1&amp=1").write_bytes(response(FOOD))
    (folder / "Fry-an-Egg.html").write_text('<h1 id="section_0">How to Fry an Egg</h1>')
    return folder


def test_recorded_pages_become_a_library(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "meta.csv").write_text("\ufeff" + META)
    library = import_library(tmp_path / "pages", dumps, tmp_path / "meta.csv")
    assert library.meta["counts"] == {"article": 2, "author": 1, "category": 1}
    assert library["Boil-an-Egg"] == Article(
        "Boil an Egg", categories=("Food", "Boiled Eggs"), authors=("Ann Lee, PhD",), updated="2021-06-02", views=1234,
        verified="Expert Co-Authored", intro="An egg wants water & care, and a little time on the stove.",
        methods=(("Steps", ("Heat the water.", "Wait.")),), references=("A book", "A page"), related=("Fry-an-Egg",),
        slug="Boil-an-Egg",
    )  # fmt: skip
    assert library["Author/Ann-Lee-PhD"] == Author(
        "Ann Lee, PhD", bio="Ann has cooked for more years than anybody can remember.", articles=("Boil-an-Egg",),
        slug="Author/Ann-Lee-PhD",
    )  # fmt: skip
    assert library["Category:Food"] == Category("Food", articles=("Boil-an-Egg",), slug="Category:Food")
    assert library.search("eggs that boil", 5)[0] == "Boil-an-Egg"
    library.close()


def test_markup_is_read_as_browsers_read_it() -> None:
    html = (
        "<!doctype html><!-- <p>no</p> --><P TITLE='a > b' class=\"x\">1 &lt; 2 < 3<br/>4</P><p/>"
        "<script>'<p>no</p>'</SCRIPT ><h2\n>&eacute;</h2><p>a<!-- -->b<a href=/Boil?x&amp;y>c</a/>"
    )
    read = parse_page(html)
    assert read.texts == {"": ["1 < 2 < 3 4", "\u00e9", "abc"]}
    assert read.links == {"": [PageLink("Boil", "c")]}


def test_the_commands(dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dumps / "bad").write_text("x")
    folder = str(tmp_path / "pages")
    assert main(["wikihow", "import", folder, "--pages", str(dumps)]) == 0
    said = capsys.readouterr().out
    assert "2 x article, 1 x author, 1 x category; library " in said
    assert "left out     1 x no title, so no article" in said
    assert main(["wikihow", "show", folder, "--search", "boil"]) == 0
    assert capsys.readouterr().out == "Boil-an-Egg  How to Boil an Egg\n"
    assert main(["wikihow", "show", folder, "--path", "Author/Ann-Lee-PhD"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Ann Lee, PhD"
    assert main(["wikihow", "show", folder, "--search", "xyzzy"]) == 0
    assert capsys.readouterr().out == "no title has any of these words\n"
    assert main(["wikihow", "import", folder, "--pages", str(dumps)]) == 2
    assert "is there already" in capsys.readouterr().err
