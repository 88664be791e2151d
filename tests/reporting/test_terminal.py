"""Text of others moves no cursor and turns no line around."""

from __future__ import annotations

import io
import json

from trailnotes.commands import main
from trailnotes.errors import ConfigError
from trailnotes.memory import open_memory
from trailnotes.reporting.terminal import PrintableStream, escape_unprintable, open_console
from trailnotes.types import Tip

HOSTILE = "\x1b[2J\x9b31m\u202eabc\u2066\r\x07\x7f\U000e0041\ud800"
SHOWN = r"\x1b[2J\u009b31m\u202eabc\u2066\r\x07\u007f\udb40\udc41\ud800"


def test_what_is_no_letter_is_shown_by_its_number() -> None:
    assert escape_unprintable(HOSTILE) == SHOWN
    assert escape_unprintable("caf\u00e9 \u958b\u9580 \U0001f6aa") == "caf\u00e9 \u958b\u9580 \U0001f6aa"
    assert escape_unprintable("a\nb") == r"a\nb"
    assert json.loads(escape_unprintable(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE, "JSON stays JSON"


def test_a_stream_keeps_lines_and_a_console_its_own_colours() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    coloured.isatty = lambda: True  # type: ignore[method-assign]
    print(f"one\n{HOSTILE}", file=PrintableStream(plain))
    assert plain.getvalue() == f"one\n{SHOWN}\n"
    open_console(PrintableStream(coloured), 200).print(f"[bold]{HOSTILE}", highlight=False)
    text = coloured.getvalue()
    assert "\x1b[2J" not in text
    assert "\u202e" not in text


def test_all_that_commands_say_goes_through_it(tmp_path, monkeypatch, capsys) -> None:
    with open_memory(tmp_path / "memory.db") as memory:
        memory.add([Tip(f"cellar{HOSTILE[:-1]}", "mind the lamp", "k", 1.0, run="\u202e\x1b[31m")])
        with memory.store.transaction():
            memory.store.retire([1], "oldest\x1b[2J", "room\u202e", on="\x9b")
    for words in (["show", "1"], ["list", "--retired"], ["list", "--retired", "--json"], ["stats"]):
        assert main(["memory", words[0], str(tmp_path / "memory.db"), *words[1:]]) == 0
        told = capsys.readouterr().out
        assert told.replace("\n", "").isprintable(), words
        assert words[-1] != "--json" or json.loads(told)["run"] == "\u202e\x1b[31m"

    def fail(*_: object) -> None:
        raise ConfigError(HOSTILE)

    monkeypatch.setattr("trailnotes.memory.exchange.open_store", fail)
    for more in ([], ["--debug"]):
        assert main(["memory", "stats", "any", *more]) == 2
        assert capsys.readouterr().err.replace("\n", "").isprintable()
