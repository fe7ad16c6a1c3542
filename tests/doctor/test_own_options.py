"""Remedies that name an option of the program: which option is one, and which only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.doctor import ObservationView, all_rules, examine
from dynotune.doctor.own_options import plain_name, with_option
from dynotune.knobs import all_knobs
from dynotune.schema.diagnosis import Finding, OwnOption
from dynotune.schema.loader import Loader
from dynotune.schema.program_options import ProgramOption
from dynotune.schema.setting import Setting

from .observations import attribution, loss, observed, timing

WORKERS = Setting("loader.num_workers", 8)


def option(name, value, const=None, help="", choices=(), default=None, flags=()):
    return ProgramOption(
        name=name,
        value=value,
        const=const,
        help=help,
        choices=list(choices),
        default=default,
        flags=[*flags, name],
    )


def view(*options, num_workers=2, **fields):
    loader = Loader(name="DataLoader", dataset="d", num_workers=num_workers)
    return ObservationView(observed(timed=timing(), loaders=[loader], options=list(options), **fields))


def offered(one, *options, **fields):
    of_finding = all_rules()[one.id].own_option if one.id in all_rules() else None
    return with_option(view(*options, **fields), one, of_finding)


def finding(*candidates, id_="some"):
    return Finding(id=id_, severity="high", claim="", share=0.3, candidates=list(candidates), remedy="Do it.")


@pytest.mark.parametrize(
    "name",
    [
        "--workers",
        "--num-workers",
        "--num_workers",
        "--data-workers",
        "--dataloader_num_workers",
        "trainer.workers",
    ],
)
def test_workers_are_named_when_the_program_has_an_option_for_them(name):
    found = offered(finding(WORKERS), option(name, "2"))
    words = [name, "8"] if name.startswith("-") else [f"{name}=8"]
    assert found.option == OwnOption(name=name, value="8", words=words, now="2")
    assert found.remedy == f"Do it. The program has an option for this: `{' '.join(words)}`, now 2."


@pytest.mark.parametrize(
    "other",
    [
        option("--workers", "4"),  # not what the loader has
        option("--workers", "2", help="number of workers of the server"),
        option("--threads", "2", help="number of workers that load data"),  # the help alone makes it none
        option("--workers-per-node", "2"),
        option("--network", "2"),
        option("-j", "2", help="jobs"),
    ],
)
def test_option_is_not_named_when_it_only_looks_like_one(other):
    found = offered(finding(WORKERS), other)
    assert found.option is None
    assert found.remedy == "Do it."


def test_letter_is_named_when_its_help_says_workers():
    assert offered(finding(WORKERS), option("-j", "2", help="data loading workers")).option.words == [
        "-j",
        "8",
    ]
    assert offered(finding(WORKERS), option("--workers", "2", flags=["-j"])).option.name == "--workers"


@pytest.mark.parametrize(
    ("candidate", "has", "words"),
    [
        (("precision.autocast", "bf16"), option("--amp", "False", const="True"), ["--amp"]),
        (("precision.autocast", "bf16"), option("--bf16", "False", const="True"), ["--bf16"]),
        (("precision.autocast", "bf16"), option("--amp", "False"), ["--amp", "True"]),
        (("precision.autocast", "bf16"), option("--amp", "0"), ["--amp", "1"]),
        (
            ("precision.autocast", "bf16"),
            option("--precision", "fp32", choices=["fp32", "bf16"]),
            ["--precision", "bf16"],
        ),
        (("compile.mode", "default"), option("--torchcompile", "False", const="True"), ["--torchcompile"]),
        (
            ("layout.channels_last", True),
            option("--channels-last", "False", const="True"),
            ["--channels-last"],
        ),
        (("loader.pin_memory", True), option("--pin-mem", "False", const="True"), ["--pin-mem"]),
        (
            ("determinism.algorithms", False),
            option("model.deterministic", "True"),
            ["model.deterministic=False"],
        ),
        (
            ("compile.mode", "default"),
            option("--compile", "False", const="True", flags=["--no-compile"]),
            ["--compile"],
        ),
    ],
)
def test_switch_is_named_when_it_is_not_as_wanted(candidate, has, words):
    assert offered(finding(Setting(*candidate)), has).option.words == words


@pytest.mark.parametrize(
    ("candidate", "has"),
    [
        (("precision.autocast", "bf16"), option("--amp", "True", const="True")),
        (("precision.autocast", "bf16"), option("--precision", "fp32")),  # its values are not known
        (("precision.autocast", "bf16"), option("--precision", "bf16", choices=["fp32", "bf16"])),
        (("compile.mode", "default"), option("--compile", None)),  # it takes a value that is not known
        (("compile.mode", "default"), option("--compile", "inductor")),
        (
            ("compile.mode", "default"),
            option("--no-compile", "False", const="True"),
        ),  # not typed: it is compiled
        (("determinism.algorithms", False), option("--deterministic", "False", const="True")),
        (("determinism.algorithms", True), option("--deterministic", "True", const="True")),
    ],
)
def test_switch_is_not_named_when_it_is_as_wanted_or_its_values_are_unknown(candidate, has):
    assert offered(finding(Setting(*candidate)), has).option is None


@pytest.mark.parametrize(
    ("id_", "candidate", "has"),
    [
        ("some", ("compile.mode", "default"), option("--no-compile", "False", const="False", default="True")),
        ("some", ("compile.mode", "default"), option("--no-compile", "True", const="True", default="False")),
        ("forward-recomputed", None, option("--grad-checkpointing", "True", const="True", default="False")),
        ("profiler-left-on", None, option("--profile", "True", const="True", default="False")),
    ],
)
def test_switch_is_left_out_when_it_was_typed(id_, candidate, has):
    one = finding(*([Setting(*candidate)] if candidate else []), id_=id_)
    found = offered(one, has)
    assert found.option.leave_out
    assert found.remedy.endswith(f"leave out `{has.name}`.")


def test_larger_number_is_named_when_validation_is_frequent():
    found = offered(finding(id_="validation-often"), option("--eval_steps", "10"))
    assert found.option == OwnOption(name="--eval_steps", now="10")
    assert found.remedy.endswith("give `--eval_steps` a larger value, now 10.")
    assert offered(finding(id_="validation-often"), option("--eval_steps", "epoch")).option is None


def test_diagnosis_names_the_option_when_a_rule_finds_the_loader():
    told = attribution(loss("loader-bound", 0.6), busy_share=0.3, input=0.6)
    loader = Loader(name="DataLoader", dataset="d", num_workers=0)
    seen = observed(
        timed=timing(wait_s=0.06),
        attributed=told,
        loaders=[loader],
        options=[option("--workers", "0")],
        facts={"host.num_cores": 8},
    )
    findings, _ = examine(ObservationView(seen))
    assert any(one.option is not None and one.option.name == "--workers" for one in findings)


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_text_of_a_program_breaks_a_finding(name, value):
    found = offered(finding(WORKERS, Setting("compile.mode", "default")), option(name, value))
    assert found.option is None or plain_name(name)


def test_options_of_knobs_and_findings_are_named_without_dashes():
    meanings = [one.own_option for one in (*all_knobs(), *all_rules().values())]
    names = [name for meaning in meanings if meaning is not None for name in meaning.names]
    assert len(names) > 50 and all(name == plain_name(name) for name in names)
