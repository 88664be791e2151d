from __future__ import annotations

import pytest

from trailnotes.reporting.tables import TEXT_WIDTH, format_table, print_table, print_text


def test_markdown_table_escapes_cells() -> None:
    assert format_table(["", "mean"], [["a|b", "0.5"]]) == ["|  | mean |", "| --- | ---: |", "| a\\|b | 0.5 |"]


def test_piped_table_is_whole_and_text_is_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table("a title", (["", "mean"], [["[red]long[/] " * 10, "**0.5**"]]))
    text = capsys.readouterr().out
    assert "[red]long[/] " * 10 in text
    assert " 0.5 │" in text
    assert "**" not in text


def test_text_is_wrapped_line_by_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_text(["word " * 40, "next"])
    first, second, third = capsys.readouterr().out.splitlines()
    assert len(first) <= TEXT_WIDTH
    assert second.startswith("  word")
    assert third == "next"
