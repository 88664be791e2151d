from __future__ import annotations

import pytest

from trailnotes.reporting.tables import TEXT_WIDTH, print_table, print_text, table_lines


def test_a_markdown_table_keeps_its_columns_whatever_a_cell_says() -> None:
    assert table_lines(["", "mean"], [["a|b", "0.5"]]) == ["|  | mean |", "| --- | ---: |", "| a\\|b | 0.5 |"]


def test_a_console_table_is_as_wide_as_it_is_and_text_is_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table("a title", (["", "mean"], [["[red]long[/] " * 10, "**0.5**"]]))
    said = capsys.readouterr().out
    assert "[red]long[/] " * 10 in said
    assert " 0.5 │" in said
    assert "**" not in said


def test_text_is_wrapped_line_by_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_text(["word " * 40, "next"])
    first, second, third = capsys.readouterr().out.splitlines()
    assert len(first) <= TEXT_WIDTH
    assert second.startswith("  word")
    assert third == "next"
