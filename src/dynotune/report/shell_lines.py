"""Write command lines that can be pasted into a shell."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dynotune.text import words


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command, wrapped over several lines, which a shell reads as one command.

    Args:
        words: the command's words, quoted for a shell.
        indent: blanks before the first line.
    """

    words: Sequence[str]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *rest = [words.plain(word, longest=4000) for word in self.words]
        line = " " * self.indent + first
        for word in rest:
            if cell_len(f"{line} {word} \\") > options.max_width:
                yield Text(f"{line} \\", style="cyan", overflow="fold")
                line = " " * (self.indent + 1)
            line = f"{line} {word}"
        yield Text(line, style="cyan", overflow="fold")
