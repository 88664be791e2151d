"""Untrusted text on a terminal: characters that move the cursor or turn lines are escaped."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

CONSOLE_HEIGHT = 24  # whatever a terminal has: rich takes no width without a height from one that can do little


def escape_unprintable(text: str) -> str:
    """Escape everything unprintable of a line, as JSON does: controls, bidi marks, invisible characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def escape_unprintable_lines(text: str) -> str:
    """Escape as `escape_unprintable` does, keeping line breaks."""
    return "\n".join(map(escape_unprintable, text.split("\n")))


def _escape_char(char: str) -> str:
    if char < " ":
        return ascii(char)[1:-1]
    return "\\u" + char.encode("utf-16-be", "surrogatepass").hex("-", 2).replace("-", "\\u")


class PrintableStream:
    """A stream that escapes unprintable text; all else is as the inner stream has it."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write escaped text; returns its original length, as streams do."""
        self.stream.write(escape_unprintable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


def open_console(stream: IO[str], width: int | None = None) -> Console:
    """Open a console of rich on `stream` that escapes texts, but not rich's own sequences."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escape_unprintable_lines(segment.text), segment.style)

    height = None if width is None else CONSOLE_HEIGHT  # without it rich asks the terminal for both
    file = stream.stream if isinstance(stream, PrintableStream) else stream
    return PrintableConsole(file=file, width=width, height=height)
