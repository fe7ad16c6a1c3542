"""Data files of the package: decoded into structs, and refused with their line."""

from pathlib import Path

import msgspec
import pytest

from dynotune.schema import data_file
from dynotune.schema.data_file import DataFileError, decoded, table

TEXT = """
# Colours.

["sky.noon"]
shades = ["light", "dark"]

["sky.night"]
shades = ["dark"]
moon.phase = "full"

[[sea]]
shades = []

[[sea]]
shades = ["green"]
"""


class Moon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    phase: str


class Sky(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shades: tuple[str, ...] = ()
    moon: Moon | None = None


Colours = dict[str, Sky | list[Sky]]


def test_table_is_decoded_when_each_entry_fits():
    colours = decoded(TEXT, Colours, "colours.toml")
    assert colours["sky.night"] == Sky(shades=("dark",), moon=Moon(phase="full"))
    assert colours["sea"] == [Sky(), Sky(shades=("green",))]


@pytest.mark.parametrize(
    ("old", "new", "line", "key"),
    [
        ('phase = "full"', "phase = 3", 9, '"sky.night".moon.phase'),
        ('["dark"]\n', '["dark", 7]\n', 8, '"sky.night".shades.1'),
        ('["green"]', '["green"]\ndepth = 3', 16, "sea.1.depth"),
        ("moon.phase", "sun.phase", 9, '"sky.night".sun'),
        ('moon.phase = "full"', "moon = {}", 9, '"sky.night".moon'),
    ],
)
def test_table_is_refused_with_its_line_and_key_when_an_entry_does_not_fit(old, new, line, key):
    with pytest.raises(DataFileError) as caught:
        decoded(TEXT.replace(old, new), Colours, "colours.toml")
    assert caught.value.where == f"colours.toml:{line}"
    assert f"`{key}`" in caught.value.message
    assert caught.value.exit_code == 70


def test_table_is_refused_with_its_line_when_it_is_no_toml():
    with pytest.raises(DataFileError) as caught:
        decoded('a = 1\nb = "', dict[str, int], "numbers.toml")
    assert caught.value.where == "numbers.toml:2"


def test_table_of_the_package_is_found_beside_its_modules():
    assert "throughput" not in table("dynotune.cli", "help.toml", dict[str, dict[str, str]])


READ_TOML = {
    "schema/data_file.py",
    "schema/recipe.py",  # recipes are other people's files
    "cli/defaults.py",  # a project's file
    "mcp/hosts.py",  # files of other programs
    "cli/__init__.py",  # `dynotune --help` reads its texts without msgspec
}


def test_data_files_are_read_by_the_loader_alone():
    package = Path(data_file.__file__).parents[1]
    others = [path for path in package.rglob("*.py") if "import tomllib" in path.read_text("utf-8")]
    assert {str(path.relative_to(package)) for path in others} == READ_TOML
