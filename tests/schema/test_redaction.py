"""Secrets are found by the names beside them, by their form, or because they were told; and nothing else
is."""

from __future__ import annotations

import inspect
import json
import re
import re._parser as sre
import tomllib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynotune.schema import comparison, diagnosis, document, observation, redaction, run, startup, study
from dynotune.schema import recipe as recipes
from dynotune.schema.recipe import Header, Proof, Recipe
from dynotune.schema.run import EnvironmentChange, Readback, Run
from dynotune.schema.setting import Setting

SECRET = "s3cr3t-Value"
HIDDEN = """
    HF_TOKEN WANDB_API_KEY --token --api-key --hf_token AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID DB_PASSWORD token
    env.HF_TOKEN --auth-token GITHUB_PAT MYSQL_PWD SMTP_PASS apiKey --client-secret SSH_PASSPHRASE
    GOOGLE_CREDENTIALS_JSON
""".split()  # noqa: E501, SIM905
PLAIN = """
    PWD --pad-token TOKENIZERS_PARALLELISM --max-tokens --tokenizer --token-budget --eos_token PATH --num-tokens knob
    value key --key PYTHONHASHSEED --compass SECRETS_DIR --batch-size
""".split()  # noqa: E501, SIM905


def test_names_say_whether_something_is_a_secret():
    assert [name for name in HIDDEN if not redaction.is_name(name)] == []
    assert [name for name in PLAIN if redaction.is_name(name)] == []


def test_no_field_of_a_record_is_called_like_a_secret():
    modules = (comparison, diagnosis, observation, recipes, run, startup, study)
    structs = [each for module in modules for _, each in inspect.getmembers(module, inspect.isclass)]
    fields = {name for each in structs if issubclass(each, msgspec.Struct) for name in each.__struct_fields__}
    assert len(fields) > 100
    assert [name for name in fields if redaction.is_name(name)] == []


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["t", "--token", SECRET], ["t", "--token", "@redacted"]),
        (["t", f'--api-key={SECRET} "y', "--b"], ["t", "--api-key=@redacted", "--b"]),
        (["t", "--token", f"$({SECRET}"], ["t", "--token", "@redacted"]),
        (["t", f"--token=$({SECRET}"], ["t", "--token=@redacted"]),
        (["t", "--token", f"$(a){SECRET}"], ["t", "--token", "@redacted"]),
        (["t", f"https://me:{SECRET}@h/x"], ["t", "https://@redacted@h/x"]),
        (["t", f"https://h/x?a=1&token={SECRET}&b=2"], ["t", "https://h/x?a=1&token=@redacted&b=2"]),
        (["t", f"https://h/x?X-Amz-Signature={SECRET}"], ["t", "https://h/x?X-Amz-Signature=@redacted"]),
        (["t", f"data.url=postgres://u:{SECRET}@h/d"], ["t", "data.url=postgres://@redacted@h/d"]),
        (
            ["sh", "-c", f"A_TOKEN={SECRET} t --password 'a b' -v"],
            ["sh", "-c", "A_TOKEN=@redacted t --password @redacted -v"],
        ),
        (
            ["curl", "-H", f"Authorization: Bearer {SECRET}"],
            ["curl", "-H", "Authorization: Bearer @redacted"],
        ),
        (["t", "hf_abcdefghijklmnopqrstu"], ["t", "@redacted"]),
        (["t", "hub.token=" + SECRET], ["t", "hub.token=@redacted"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_secrets_of_a_command_are_not_kept(command, kept):
    assert redaction.words(command) == kept
    assert redaction.words(kept) == kept


@pytest.mark.parametrize(
    "command",
    [
        ["t", "--token", "--b"],
        ["t", "--token"],
        ["t", "--token", "{token}"],
        ["t", "--token", "$TOKEN"],
        ["t", "--token=${TOKEN}"],
        ["t", "--token", "$(cat /run/token)"],
        ["sh", "-c", "t --token $(cat /run/token) -v"],
        ["t", "--use-auth-token", "true"],
        ["t", "--pad-token", "<pad>", "--tokenizer", "gpt2", "--max-tokens", "4096"],
        ["git", "clone", "ssh://git@github.com/a/b", "https://example.org/a@b"],
        ["t", "--sort-key", "name", "lr=1e-3", "a/b:c@d"],
    ],
    ids=" ".join,
)
def test_redaction_keeps_words_that_are_no_secret(command):
    assert redaction.words(command) == command


@pytest.mark.parametrize(
    "text",
    [
        f"ValueError: Invalid token: {SECRET}",
        f"    login(token='{SECRET}')",
        f'    headers = {{"api_key": "{SECRET}"}}',
        f"requests.HTTPError: 401 for url: https://h/x?access_token={SECRET}",
        f'export HF_TOKEN="{SECRET} and more"',
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET.replace('-', '')}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_lines_of_a_traceback_hold_no_secrets(text):
    shown = redaction.redacted(text)
    assert "@redacted" in shown and "s3cr3t" not in shown
    assert redaction.redacted(shown) == shown


def test_a_value_that_was_learned_is_hidden_wherever_a_program_prints_it():
    redaction.learn({"MY_TOKEN": SECRET, "A_TOKEN": "abc", "B_SECRET": "throughput", "C_AUTH": "/run/x1"})
    assert redaction.redacted(f"got {SECRET}!") == "got @redacted!"
    redaction.learn({}, ["t", "--api-key", "q7" + SECRET[3:]], [Setting("env.X_TOKEN", 'a "quoted" 1')])
    assert redaction.redacted(f"got q7{SECRET[3:]}") == "got @redacted"
    assert redaction.redacted(json.dumps('a "quoted" 1')) == '"@redacted"'
    # Words that mean something else in a record do not vanish from it.
    assert redaction.redacted('"throughput", "/run/x1/a", "abc"') == '"throughput", "/run/x1/a", "abc"'


KEYS = st.sampled_from([*HIDDEN, *PLAIN])
VALUES = st.text(max_size=12) | st.sampled_from(
    [
        SECRET,
        "@unset",
        "https://a:b@c",
        "--token",
        "Bearer abcdefgh",
        "'a b'",
        "token=",
        "api_key='",
        'TOKEN="',
    ]
)
TREES = st.recursive(
    VALUES | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS | VALUES, inner, max_size=4),
    max_leaves=20,
)


def shape(tree):
    if isinstance(tree, dict):
        return [shape(inner) for inner in tree.values()]
    return [shape(inner) for inner in tree] if isinstance(tree, list) else type(tree)


def as_pairs(pairs):
    """Of an object in which two keys may have become one."""
    return dict(enumerate(value for _, value in pairs))


@given(TREES, st.sampled_from([None, 1]))
def test_json_stays_json_of_the_same_shape_and_redacting_it_again_changes_nothing(tree, indent):
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    kept = redaction.redacted(text)
    assert shape(json.loads(kept, object_pairs_hook=as_pairs)) == shape(tree)
    assert redaction.redacted(kept) == kept


@given(
    st.sampled_from(HIDDEN),
    st.from_regex(r"[A-Za-z0-9_+/]{4,40}", fullmatch=True),
    st.sampled_from([None, 1]),
)
def test_a_value_beside_the_name_of_a_secret_is_in_no_record(name, value, indent):
    name, value = name.lstrip("-"), f"{value}zq"
    tree = {
        "argv": ["python", f"--{name}", value, f"--{name}={value}"],
        "settings": [{"knob": f"env.{name}", "value": value}],
        "facts": {f"env.{name}": value},
        "text": f"run with --{name} {value} and {name}={value}",
    }
    assert value not in redaction.redacted(json.dumps(tree, indent=indent))


def test_the_hint_is_in_all_that_the_patterns_find():
    whole = [f"{name}={SECRET}" for name in HIDDEN] + [f'"{name}": "{SECRET}"' for name in HIDDEN]
    assert [
        text for text in whole if not any(re.search(hint, text.lower()) for hint in redaction.HINTS)
    ] == []


FRAGMENTS = st.sampled_from(
    [
        *HIDDEN,
        "=",
        '="',
        '": "',
        '", "',
        "\\",
        '\\"',
        "'",
        " ",
        "\n",
        "://",
        "a@",
        "{",
        "}",
        '"knob": "',
        '"value": "',
        "eyJ",
        "-",
    ]
)


@given(
    st.lists(FRAGMENTS | VALUES, max_size=30),
    st.sampled_from(["", " ", "x", '"', "\n"]),
    st.integers(0, 6000),
)
@example(['TOKEN="', "TOKEN=", "}", '="'], "", 200)
def test_stretches_around_hints_hold_whatever_the_patterns_find_in_the_whole(fragments, filler, distance):
    half = len(fragments) // 2
    text = "".join([*fragments[:half], filler * distance, *fragments[half:]])
    stretches = [0, *(at for stretch in redaction._suspicious(text) for at in stretch), len(text)]
    assert stretches == sorted(stretches)
    if distance < 200:
        whole, before = text, ""
        while whole != before:
            before = whole
            for pattern in redaction._patterns():
                whole = pattern.sub(r"\g<1>@redacted", whole)
        assert redaction.redacted(text) == whole
    assert redaction.redacted(redaction.redacted(text)) == redaction.redacted(text)


def unbounded(tree):
    """What a pattern repeats without a bound, as parsed trees."""
    for operator, argument in tree:
        if operator is sre.MAX_REPEAT or operator is sre.MIN_REPEAT:
            _, most, inner = argument
            if most is sre.MAXREPEAT:
                yield inner
            yield from unbounded(inner)
        elif operator is sre.SUBPATTERN:
            yield from unbounded(argument[-1])
        elif operator is sre.BRANCH:
            for branch in argument[1]:
                yield from unbounded(branch)
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            yield from unbounded(argument[1])


@pytest.mark.parametrize("pattern", redaction.PATTERNS)
def test_the_time_of_a_pattern_grows_as_the_text_does(pattern):
    """By its structure: nothing is repeated within a repetition without a bound, and no name has unlimited
    length."""
    tree = sre.parse(pattern)
    first = next(argument for operator, argument in tree if operator is sre.SUBPATTERN)
    assert {str(inner) for inner in unbounded(first[-1])} <= {str(sre.parse(r"\s"))}
    for inner in unbounded(tree):
        assert inner.getwidth()[1] <= 2 and not list(unbounded(inner))
    # What is not taken is looked at again by the next try: behind what was repeated stands nothing that may
    # be missing.
    operators = [operator for operator, _ in tree]
    assert sre.ASSERT not in operators or r"(?=@)" in pattern


# Documents


def a_run(**changes):
    fields = {
        "cwd": "/",
        "command": ["t", "--token", SECRET],
        "settings": [Setting("env.HF_TOKEN", SECRET), Setting("loader.num_workers", 2)],
        "readback": [
            Readback("env.HF_TOKEN", SECRET, SECRET, "getenv", True, f"the program set it to {SECRET}")
        ],
    }
    return Run(id="r", purpose="run", started_s=0.0, **(fields | changes))


def test_a_record_is_written_and_shown_without_secrets_and_is_a_record(tmp_path):
    document.write(tmp_path / "run.json", a_run())
    assert SECRET not in (tmp_path / "run.json").read_text()
    kept = document.read(tmp_path / "run.json", Run)
    assert kept == document.without_secrets(a_run())
    assert kept.command == ["t", "--token", "@redacted"] and kept.settings[1] == Setting(
        "loader.num_workers", 2
    )
    plain = a_run(command=["t"], settings=[], readback=[])
    assert document.without_secrets(plain) is plain


def test_a_change_of_a_variable_is_kept_without_its_value():
    change = EnvironmentChange("HF_TOKEN", SECRET, "t.py", 1, "main")
    assert SECRET not in document.encode(change).decode()


def test_a_recipe_is_written_without_secrets():
    proof = Proof("env.HF_TOKEN", 1.2, (1.1, 1.3), 4, "semantics", value=SECRET)
    head = Header(recipes.SCHEMA, command=["t", f"--token={SECRET}", "x"], baseline=["arg.x=1"])
    text = recipes.text(Recipe(head, {"env.HF_TOKEN": SECRET, "loader.num_workers": 2}, [proof]))
    assert SECRET not in text
    assert tomllib.loads(text)["recipe"]["command"] == ["t", "--token=@redacted", "x"]


BYTES = "\udcff"


@pytest.mark.parametrize("hidden", [SECRET, f"{BYTES}{SECRET}{BYTES}"])
def test_secrets_beside_and_of_bytes_that_are_no_text_are_left_out_too(hidden, tmp_path):
    redaction.learn({"MY_TOKEN": hidden})
    made = a_run(command=[BYTES, "--token", hidden, f"x{hidden}"], cwd=f"/{BYTES}é")
    for indent in (0, 1):
        raw = document.encode(made, indent=indent)
        assert b"s3cr3t" not in raw
        kept = document.decode(raw, Run, name="x")
        assert kept == document.without_secrets(made)
        assert (kept.command, kept.cwd) == ([BYTES, "--token", "@redacted", "x@redacted"], f"/{BYTES}é")
    recipes.write(
        tmp_path / "r.toml", Recipe(Header(recipes.SCHEMA, command=made.command), {"loader.num_workers": 2})
    )
    assert "s3cr3t" not in (tmp_path / "r.toml").read_text()
    assert recipes.read(tmp_path / "r.toml").recipe.command == kept.command
