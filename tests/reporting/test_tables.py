from __future__ import annotations

import sys

import pytest

from trailnotes.reporting.tables import TEXT_WIDTH, format_table, print_table, print_text


def test_a_markdown_table_keeps_its_columns_whatever_a_cell_says() -> None:
    assert format_table(["", "mean"], [["a|b", "0.5"]]) == ["|  | mean |", "| --- | ---: |", "| a\\|b | 0.5 |"]


def test_a_console_table_is_as_wide_as_it_is_and_text_is_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table("a title", (["", "mean"], [["[red]long[/] " * 10, "**0.5**"]]))
    said = capsys.readouterr().out
    assert "[red]long[/] " * 10 in said
    assert " 0.5 │" in said
    assert "**" not in said


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrow_terminal_gets_whole_cells_in_parts(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")  # without colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    numbers = [f"{index}.5 [{index}.25, {index}.75]" for index in range(8)]
    head = ["", *(f"metric {index}" for index in range(8))]
    print_table("a title", (head, [["method", *numbers], ["other", *numbers]]))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    assert [said.count(number) for number in numbers] == [2] * 8
    assert "…" not in said
    assert said.count("method") == said.count("other") == said.count("a title") > 1


def test_a_first_column_that_no_terminal_holds_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table("", (["", "mean"], [["word " * 20, "0.5 [0.25, 0.75]"]]))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 40
    assert said.count("word") == 20
    assert " 0.5 [0.25, 0.75] " in said


def test_text_is_wrapped_line_by_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_text(["word " * 40, "next"])
    first, second, third = capsys.readouterr().out.splitlines()
    assert len(first) <= TEXT_WIDTH
    assert second.startswith("  word")
    assert third == "next"
