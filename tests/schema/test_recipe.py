"""`recipe.toml`: what is written is read again, and what somebody made of it by hand is read or refused."""

from __future__ import annotations

import os
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.schema import recipe as recipes
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError
from dynotune.schema.recipe import Header, Proof, Recipe

HEAD = '[recipe]\nschema = "dynotune.recipe/2"\n'
PROOF = '[[proof]]\nknob = "env.A"\nspeedup = 1.2\nci = [1.1, 1.3]\nnum_pairs = 6\neffect = "exact"\n'

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
# Dots are for tables; a knob has them between its parts.
TABLES = st.dictionaries(TEXT.filter(lambda text: text != ""), VALUES, max_size=5)
SPEEDUPS = st.tuples(*[st.floats(0.01, 100)] * 3).map(sorted)


@st.composite
def made(draw):
    low, speedup, high = draw(SPEEDUPS)
    settings = draw(TABLES)
    proofs = [
        Proof(
            knob,
            speedup,
            (low, high),
            draw(st.integers(0, 99)),
            draw(st.sampled_from(list(recipes.EFFECTS))),
            draw(st.sampled_from(["ablation", "confirmation"])),
            value,
        )
        for knob, value in settings.items()
    ]
    head = Header(
        recipes.SCHEMA,
        draw(TEXT),
        draw(
            st.lists(
                TEXT | st.binary(max_size=5).filter(lambda word: b"\0" not in word).map(os.fsdecode),
                max_size=4,
            )
        ),
        draw(st.sampled_from(["throughput", "memory"])),
        *draw(st.sampled_from([(None, None, None), (speedup, (low, high), 8)])),
        step_function=draw(st.one_of(st.none(), TEXT.filter(bool))),
    )
    about = {knob: draw(TEXT) for knob in settings}
    return Recipe(head, settings, proofs, draw(TABLES), about)


@given(made())
@example(
    Recipe(
        Header(recipes.SCHEMA),
        {"env.A": "\x7f\u202e\r\n\"'\\\u2028 # \U0001f600"},
        about={"env.A": "a\n[settings]"},
    )
)
def test_a_recipe_that_is_written_is_read_as_it_was(recipe):
    text = recipes.text(recipe)
    table = tomllib.loads(text)
    assert recipes._recipe(table, "it") == replace(recipe, about={})


@pytest.mark.parametrize("value", ["a\0b", "\udcff"])
def test_recipe_write_refuses_values_that_no_text_file_can_hold(tmp_path, value):
    path = tmp_path / "recipe.toml"
    path.write_text("precious")
    with pytest.raises(UsageError, match="cannot be written"):
        recipes.write(path, Recipe(Header(recipes.SCHEMA), {"env.A": value}))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63])
def test_a_number_that_toml_has_no_room_for_is_refused(tmp_path, value):
    with pytest.raises(UsageError):
        recipes.write(tmp_path / "recipe.toml", Recipe(Header(recipes.SCHEMA), {"env.A": value}))
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_would_be_too_large_to_read_is_not_written(tmp_path):
    with pytest.raises(UsageError, match="too large"):
        recipes.write(
            tmp_path / "recipe.toml", Recipe(Header(recipes.SCHEMA, command=["x" * recipes.LARGEST_BYTES]))
        )
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_cannot_be_written_leaves_what_was_there(tmp_path):
    (tmp_path / "recipe.toml").mkdir()
    with pytest.raises(CannotRunHere, match="Cannot write"):
        recipes.write(tmp_path / "recipe.toml", Recipe(Header(recipes.SCHEMA)))
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_the_comments_say_what_a_setting_is_and_what_proved_it():
    proof = Proof("loader.num_workers", 1.31, (1.28, 1.35), 6, "sampling", "ablation", 4)
    head = Header(recipes.SCHEMA, speedup=1.42, ci=(1.38, 1.47), num_pairs=8)
    settings = {"loader.num_workers": 4, "env.A": "1"}
    text = recipes.text(Recipe(head, settings, [proof], about={"loader.num_workers": "Processes that load."}))
    before, _, after = text.partition('"loader.num_workers" = 4')
    said = " ".join(before.replace("# ", "").split())
    assert "All of it together: 1.420 times as fast (between 1.380 and 1.470), 8 pairs of runs." in said
    assert (
        "Processes that load. Proved: 1.310 times as fast (between 1.280 and 1.350), with it against" in said
    )
    assert "against without, beside the settings tried with it, in 6 pairs of runs." in said
    assert "in 6 pairs of runs. Effect: the same samples in the same order, other random draws." in said
    assert "# No proof belongs to this value.\n" in after


def test_of_memory_the_comments_say_how_much_less():
    head = Header(recipes.SCHEMA, objective="memory", speedup=1.25, ci=(1.25, 2.0))
    assert "20.0% less memory (between 20.0% and 50.0%)" in recipes.text(Recipe(head))


def read(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return recipes.read(path)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "[settings]\nloader.num_workers = 4\n",
        HEAD + '[settings]\n"loader.num_workers" = 4 # mine\n',
        HEAD + "[settings.loader]\nnum_workers = 4\n",
        ("\ufeff" + HEAD + '[settings]\n"loader.num_workers" = 4\n').replace("\n", "\r\n"),
    ],
    ids=["unquoted", "quoted", "table", "windows"],
)
def test_a_recipe_written_by_hand_is_read(tmp_path, text):
    assert read(tmp_path, text).settings == {"loader.num_workers": 4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HEAD.replace("/2", "/3") + "[new]\nthings = 1\n",
            "is dynotune.recipe/3, and this dynotune reads dynotune.recipe/2",
        ),
        (HEAD.replace("dynotune", "\\u001b]0;x\\u0007"), r"\\x1b\]0;x\\x07"),
        ("", "is not a dynotune.recipe/2"),
        ("recipe = 3", "is not a dynotune.recipe/2"),
        ("settings = [1, 2]\n" + HEAD, r"Expected `object`, got `array` - at `\$.settings`"),
        (HEAD + "[setting]\na = 1\n", "it has 'setting' beside recipe, settings"),
        (HEAD + '[settings]\n"env.A" = [1]\n', r"at `\$.settings"),
        (HEAD + '[settings]\n"env.A" = 2020-01-01\n', r"at `\$.settings"),
        (HEAD + '[settings]\n"env.A" = 1\n"env.A" = 2\n', "is not TOML: .*overwrite"),
        (HEAD + '[settings]\n"env.A" = 1\nenv.A = 2\n', "'env.A' is set twice"),
        (HEAD + "speedup = nan\n", r"in \[recipe\], a speed-up must be a number above 0"),
        (HEAD + "ci = [2.0, 1.0]\n", r"in \[recipe\], ci must be"),
        (HEAD + "num_pairs = -1\n", r"in \[recipe\], num_pairs is below 0"),
        (HEAD + 'objective = "fame"\n', "Invalid enum value 'fame'"),
        (HEAD + PROOF.replace("1.2", "inf"), "in the proof of 'env.A', a speed-up must be"),
        (HEAD + PROOF.replace("1.1", "-1.1"), "in the proof of 'env.A', a speed-up must be"),
        (HEAD + PROOF.replace("[1.1, 1.3]", "[1.3, 1.1]"), "in the proof of 'env.A', ci must be"),
        (HEAD + PROOF.replace("[1.1, 1.3]", "[1.1]"), r"\$.proof"),
        (HEAD + PROOF.replace("exact", "harmless"), "Invalid enum value 'harmless'"),
        (HEAD + PROOF.replace("1.2", '"fast"'), r"\$.proof\[0\].speedup"),
        ("proof = 3\n" + HEAD, r"at `\$.proof`"),
        (HEAD + "x = " + "[" * 100_000, "is not TOML"),
        (HEAD + "[settings]\n" + ".".join("a" * 100_000) + " = 1\n", "a key of more than 100 parts"),
        (HEAD + "[" + ".".join(["'a'"] * 10_000) + "]\n", "a key of more than 100 parts"),
        (HEAD + "x = " + "9" * 10_000, "is not TOML"),
        (b"\x7fELF\x02\x01\x01\0\xff\xfe", "is not TOML"),
        (b"#" * (recipes.LARGEST_BYTES + 1), "too large"),
    ],
)
def test_recipe_read_refuses_a_file_that_is_no_recipe_with_the_reason(tmp_path, text, said):
    with pytest.raises(RecordError, match=said) as error:
        read(tmp_path, text)
    assert "recipe.toml" in error.value.message
    assert error.value.message.isprintable()
    assert len(error.value.message) < 500


def test_recipe_read_says_why_when_a_file_cannot_be_read(tmp_path):
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "a\0", "null"),
    ):
        with pytest.raises(RecordError, match=said):
            recipes.read(path)
