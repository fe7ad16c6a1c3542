"""Options of the program, as the parsers of real programs gave them, without secrets."""

from __future__ import annotations

import importlib.util

import pytest

from dynotune.schema import redaction
from dynotune.schema.events import AgentError, OptionsParsed

TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?")
parser.add_argument("-j", "--workers", type=int, default=2, help="data loading workers")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--no-compile", dest="compile", action="store_false")
parser.add_argument("--bf16", nargs="?", const=True, default=False)
parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--api-key", default="first-secret-1234")
given = parser.parse_args()
argparse.ArgumentParser().parse_known_args(["--other", "1"])
"""
SUBCOMMANDS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
train = parser.add_subparsers(dest="what").add_parser("train")
train.add_argument("--workers", type=int, default=2)
given = parser.parse_args()
"""
HF = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class Arguments:
    dataloader_num_workers: int = field(default=2, metadata={"help": "workers"})
    bf16: bool = field(default=False)
(given,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
"""
CLICK = """
import click
@click.command()
@click.option("--workers", "-j", default=2, help="data loading workers")
@click.option("--amp/--no-amp", default=False)
@click.option("--dtype", type=click.Choice(["fp32", "bf16"]), default="fp32")
def main(**given):
    TRAIN
main()
"""
TYPER = """
import typer
def main(workers: int = typer.Option(2, "--workers", "-j", help="workers"), amp: bool = False):
    TRAIN
typer.run(main)
"""
OMEGACONF = """
from omegaconf import OmegaConf
base = OmegaConf.create({"trainer": {"workers": 2, "compile": False}, "seed": 1})
given = OmegaConf.merge(base, OmegaConf.from_cli())
"""
HYDRA = """
import hydra
from omegaconf import DictConfig, OmegaConf
from hydra.core.config_store import ConfigStore
ConfigStore.instance().store(name="base", node=OmegaConf.create({"trainer": {"workers": 2}}))
@hydra.main(version_base=None, config_name="base")
def main(given):
    TRAIN
main()
"""


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


@pytest.fixture
def parsed(fork_under_agent, script):
    return lambda program, *arguments: options_of(fork_under_agent, script, program, arguments)


def options_of(run, script, program, arguments):
    """The options by name that a program recorded, and the parsers."""
    if "TRAIN" in program:
        program = program.replace(
            "    TRAIN", "\n".join(f"    {line}" for line in TRAIN.strip().splitlines())
        )
    else:
        program += TRAIN
    secrets = {"secret_hints": redaction.HINTS, "secret_patterns": redaction.PATTERNS}
    ran = run([script(program), *arguments], observe=True, **secrets)
    assert ran.returncode == 0, ran.stderr
    assert not [event for record in ran.records for event in record.all(AgentError)]
    events = [event for record in ran.records for event in record.all(OptionsParsed)]
    return {row.name: row for event in events for row in event.options}, {event.parser for event in events}


def test_options_are_recorded_when_argparse_reads_the_command_line(parsed):
    rows, parsers = parsed(ARGPARSE, "somewhere", "-j", "4", "--no-compile")
    assert parsers == {"argparse"}
    workers = rows["--workers"]
    assert (workers.value, workers.default, workers.const, workers.flags) == (
        "4",
        "2",
        None,
        ["-j", "--workers"],
    )
    assert workers.help == "data loading workers"
    assert (rows["--amp"].value, rows["--amp"].const) == ("False", "True")
    assert (rows["--no-compile"].value, rows["--no-compile"].const) == ("False", "False")
    assert rows["--bf16"].const == "True"
    assert rows["--dtype"].choices == ["fp32", "bf16"]
    assert "--other" not in rows


def test_secrets_are_left_out_when_options_have_telling_names(parsed, tmp_path):
    rows, _ = parsed(ARGPARSE, "https://me:hunter22@example.org/data", "--api-key", "second-secret-5678")
    assert "--workers" in rows
    assert "--api-key" not in rows
    written = b"".join(file.read_bytes() for file in tmp_path.glob("run-*/*.rec"))
    assert b"options" in written
    assert not [
        secret for secret in (b"first-secret", b"second-secret-5678", b"hunter22") if secret in written
    ]


def test_options_of_both_parsers_are_recorded_when_a_program_has_subcommands(parsed):
    rows, _ = parsed(SUBCOMMANDS, "--seed", "3", "train", "--workers", "5")
    assert (rows["--seed"].value, rows["--workers"].value) == ("3", "5")


@pytest.mark.long
@needs("transformers")
def test_options_are_recorded_when_transformers_parses_them(parsed):
    rows, _ = parsed(HF, "--dataloader_num_workers", "1")
    assert rows["--dataloader_num_workers"].value == "1"
    assert (rows["--bf16"].value, rows["--bf16"].const) == ("False", "True")


@pytest.mark.parametrize(
    ("program", "parser"),
    [pytest.param(CLICK, "click", marks=needs("click")), pytest.param(TYPER, "typer", marks=needs("typer"))],
)
def test_options_are_recorded_when_click_or_typer_parses_them(parsed, program, parser):
    rows, parsers = parsed(program, "-j", "3")
    assert parsers <= {parser, "click"}
    assert (rows["--workers"].value, rows["--workers"].default, rows["--workers"].const) == ("3", "2", None)
    assert set(rows["--amp"].flags) == {"--amp", "--no-amp"}
    assert (rows["--amp"].value, rows["--amp"].const) == ("False", "True")


@pytest.mark.parametrize(
    ("program", "parser"),
    [
        pytest.param(OMEGACONF, "omegaconf", marks=needs("omegaconf")),
        pytest.param(HYDRA, "hydra", marks=needs("hydra")),
    ],
)
def test_options_are_recorded_when_a_configuration_is_overridden(parsed, program, parser):
    rows, parsers = parsed(program, "trainer.workers=6")
    assert parser in parsers
    assert rows["trainer.workers"].value == "6"
