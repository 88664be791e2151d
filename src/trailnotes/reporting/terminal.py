"""Text of others on a terminal: what would move the cursor, or turn a line around, is shown as its number."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

CONSOLE_HEIGHT = 24  # whatever a terminal has: rich takes no width without a height from one that can do little


def escape_unprintable(text: str) -> str:
    """`text` on one line, with escapes for all that is no letter there: controls, bidi marks, what is invisible.

    In a line of JSON they are those of JSON, so that it stays one.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def escape_unprintable_lines(text: str) -> str:
    """As `printable`, of text that may have several lines."""
    return "\n".join(map(escape_unprintable, text.split("\n")))


def _escape_char(char: str) -> str:
    if char < " ":
        return ascii(char)[1:-1]
    return "\\u" + char.encode("utf-16-be", "surrogatepass").hex("-", 2).replace("-", "\\u")


class PrintableStream:
    """A stream to a terminal or a file that writes `escape_unprintable_lines`; all else is as the stream has it."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`; returns its length, as streams do."""
        self.stream.write(escape_unprintable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write `lines` one after the other, as streams do."""
        self.write("".join(lines))


def open_console(stream: IO[str], width: int | None = None) -> Console:
    """A console of rich on `stream`: its own sequences reach it, and those in the text do not."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escape_unprintable_lines(segment.text), segment.style)

    height = None if width is None else CONSOLE_HEIGHT  # without it rich asks the terminal for both
    file = stream.stream if isinstance(stream, PrintableStream) else stream
    return PrintableConsole(file=file, width=width, height=height)
