"""Paths, modules and options that the documents name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynotune import cli

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BENCHMARKS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("benchmarks/field/*.py")])
LAB = sorted(ROOT.glob("lab/tuning/*.py"))
HELP = sorted([*ROOT.glob("src/dynotune/cli/*.py"), ROOT / "src/dynotune/cli/help.toml"])

PATH = re.compile(r"(?<![\w/.-])(?:src|tests|benchmarks|lab|docs|examples|tools)/[\w./*-]*[\w*]")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
MODULE = re.compile(r"(?<![\w./@:-])dynotune(?!\.toml\b)(?:\.[A-Za-z_]\w*)+(?![\w/-]|\.(?:toml|json|py)\b)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(r"(?<![\w./-])dynotune((?: (?!-)[\w|]+)+)")
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
OF_THE_HOST = "../../actions/"
"""Links of the README that the repository's host serves: badges of its workflows."""
RENAMED = re.compile(r"\((?:was )?`--[^)]*\)")
"""Of the changelog: names that options had."""
OTHERS = {
    *("--cuda-graph-trace", "--ipc", "--no-capture-output", "--no-deps", "--privileged", "--shm-size"),
    "--void-as-designed",
}
"""Options of conda, Docker, pip, Nsight Systems and a benchmark."""
USERS = {"src/train.py"}
"""Paths of the user's, in examples."""


def _label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _text(path: Path) -> str:
    """A page, or the docstring of a script."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".md" else ast.get_docstring(ast.parse(text)) or ""


def _exists(path: str) -> bool:
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _is_of_ours(name: str) -> bool:
    """Whether a dotted name is a module of ours, or a name in one."""
    place, parts = SOURCE, name.split(".")
    for at, part in enumerate(parts):
        if (place / part).is_dir():
            place /= part
            continue
        file, rest = place / f"{part}.py", parts[at + 1 :]
        if not file.is_file():
            file, rest = place / "__init__.py", parts[at:]
        return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None
    return True


def _options_of(command: Any) -> Iterator[tuple[str, set[str]]]:
    yield "", {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for name, sub in getattr(command, "commands", {}).items():
        yield from ((f"{name} {inner}".strip(), options) for inner, options in _options_of(sub))


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of each subcommand, by its words; "" has those that stand anywhere."""
    found = {"": {"--help", "--debug", "--version"}}
    for name in cli.COMMANDS:
        of_one = cli._parser([name]).commands[name]
        found |= {f"{name} {inner}".strip(): options for inner, options in _options_of(of_one)}
    return found


def _commands(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Words and options of each command line of ours in `text`, up to the user's command."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for match in COMMAND.finditer(line):
            ours = re.split(r"(?<!\S)--(?!\S)|`|  #|;|&&|\.\s", line[match.start() :])[0]
            yield match[1].split(), OPTION.findall(ours)


def _wrong(text: str, options: dict[str, set[str]]) -> Iterator[str]:
    for words, given in _commands(text):
        if words[0] not in options and not any(name.startswith(f"{words[0]} ") for name in options):
            continue  # "dynotune does", in prose
        known = _known(words, options)
        yield from (f"dynotune {' '.join(words)} {option}" for option in given if option not in known)


def _known(words: Sequence[str], options: dict[str, set[str]]) -> set[str]:
    """The options of the subcommand that the words begin with; of `startup warm|pack`, those of either.

    A word that is no subcommand stands for `NAME`, where there is one.
    """
    names = [f"{words[0]} {second}" for second in words[1].split("|")] if len(words) > 1 else []
    names = [name for name in names if name in options] or [words[0], f"{words[0]} NAME"]
    return options[""].union(*(options.get(name, set()) for name in names))


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS], ids=_label)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    text = _text(page)
    assert [path for path in PATH.findall(text) if path not in USERS and not _exists(path)] == []
    if page.suffix == ".md":
        links = [link for link in LINK.findall(text) if not link.startswith(OF_THE_HOST)]
        assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS], ids=_label)
def test_modules_and_names_of_ours_that_a_page_names_exist(page: Path) -> None:
    assert [name for name in MODULE.findall(_text(page)) if not _is_of_ours(name)] == []


@pytest.mark.parametrize("page", [*PAGES, *HELP], ids=_label)
def test_command_lines_that_a_page_shows_have_options_that_exist(
    page: Path, options: dict[str, set[str]]
) -> None:
    assert list(_wrong(page.read_text(encoding="utf-8"), options)) == []


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_options_that_a_page_names_alone_are_of_some_subcommand(
    page: Path, options: dict[str, set[str]]
) -> None:
    text = RENAMED.sub("", page.read_text(encoding="utf-8"))
    alone = [span for span in CODE.findall(text) if span.startswith("`--")]
    known = OTHERS.union(*options.values())
    assert [option for span in alone for option in OPTION.findall(span) if option not in known] == []


@pytest.mark.parametrize("script", BENCHMARKS, ids=_label)
def test_options_that_a_benchmark_names_are_its_own_or_of_dynotune(
    script: Path, options: dict[str, set[str]]
) -> None:
    # Benchmarks of one kind declare what they have in common in a module of the lab.
    declared = "".join(path.read_text(encoding="utf-8") for path in [*BENCHMARKS, *LAB])
    known = set(re.findall(r'"(--[a-z][\w-]*)"', declared)).union(*options.values())
    assert [option for option in OPTION.findall(_text(script)) if option not in known] == []
