"""A stored document goes on with the secrets that are typed again."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.schema import document, resumption
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import Setting

from ..fakes import of_run

SECRET = "s3cr3t-Value"
BYTES = "\udcff"


def begun(*settings, command=("t", "--token", SECRET), candidate=()):
    made = of_run(
        Comparison, id="c", command=list(command), settings=list(settings), candidate_settings=list(candidate)
    )
    return document.without_secrets(made)


def typed(kept, *settings, command=()):
    return msgspec.structs.replace(kept.run, command=list(command), settings=list(settings))


def test_secrets_of_a_record_are_taken_from_what_is_typed_when_it_goes_on():
    token, other = Setting("env.HF_TOKEN", 'a "b" \\1'), Setting("env.A", "1")
    kept = begun(other, candidate=[token])
    assert SECRET not in str(kept) and kept.candidate_settings[0].value == "@redacted"
    now = typed(kept, token, command=["t", "--token", "another-1"])
    whole = resumption.completed(kept, now, *kept.candidate_settings)
    assert (whole.run.command, whole.candidate_settings) == (["t", "--token", "another-1"], [token])
    assert whole.run.settings == [other]


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ((), [], "env.HF_TOKEN and the command"),
        ((), [Setting("env.HF_TOKEN", "x")], "those of the command"),
        (("t", "--token", "x"), [], "those of env.HF_TOKEN"),
        (("t", "--token", "x", "--more"), [], "another command"),
    ],
)
def test_a_record_does_not_go_on_without_its_secrets(command, settings, said):
    kept = begun(candidate=[Setting("env.HF_TOKEN", SECRET)])
    with pytest.raises(UsageError, match=said):
        resumption.completed(kept, typed(kept, *settings, command=command), *kept.candidate_settings)


def test_two_secrets_of_one_variable_are_not_taken_for_the_same():
    candidate = [Setting("env.HF_TOKEN", "two-2")]
    kept = begun(Setting("env.HF_TOKEN", "one-1"), command=["t"], candidate=candidate)
    with pytest.raises(UsageError, match="Two values"):
        resumption.completed(kept, typed(kept, Setting("env.HF_TOKEN", "one-1")), *kept.candidate_settings)


def test_a_record_of_bytes_goes_on_with_secrets_of_bytes():
    token = Setting("env.HF_TOKEN", f"{BYTES}é1")
    kept = begun(candidate=[token], command=["t", BYTES])
    whole = resumption.completed(kept, typed(kept, token), *kept.candidate_settings)
    assert (whole.run.command, whole.candidate_settings) == (["t", BYTES], [token])


def test_a_record_without_secrets_goes_on_as_it_is():
    kept = begun(Setting("env.A", "1"), command=["t"])
    assert resumption.completed(kept, typed(kept, command=["other"])) is kept
