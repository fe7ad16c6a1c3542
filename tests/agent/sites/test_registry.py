"""Every site is read back in both of its uses, under the agent as it attaches to a real program."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

from dynotune import knobs
from dynotune.agent.sites.delay import DelaySite
from dynotune.agent.sites.registry import SITES, by_site, site_of
from dynotune.agent.sites.site import Site
from dynotune.launch.process import environment
from dynotune.schema.events import ArmGivenUp, ArmsCompared, Block, SettingsReadBack

TRAINS = """
import torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
optimizer = torch.optim.AdamW(model.parameters(), 0.001)
plain = torch.compile
torch.compile = lambda function, **options: plain(function, backend="eager")
for images in DataLoader(torch.randn(16_000, 1).expand(-1, 3 * 64), batch_size=8):
    model(images.reshape(-1, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""  # noqa: E501
SERVES = """
import sys, torch, types
def quantize_(model, config, filter_fn):
    for name, layer in model.named_modules():
        if filter_fn(layer, name):
            layer.weight = torch.nn.Parameter(layer.weight / 2)
sys.modules["torchao"] = sys.modules["torchao.quantization"] = torchao = types.ModuleType("torchao")
torchao.quantization, torchao.quantize_, torchao.Int8WeightOnlyConfig = torchao, quantize_, dict
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
for _ in range(1_000):
    model(torch.randn(8, 16))
"""
DECODES = """
import io, numpy, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
class Pictures(Dataset):
    def __init__(self):
        file = io.BytesIO()
        Image.fromarray(numpy.arange(64 * 64, dtype="uint8").reshape(64, 64)).save(file, "JPEG")
        self.data = file.getvalue()
    def __len__(self):
        return 1_000
    def __getitem__(self, index):
        return torch.from_numpy(numpy.array(Image.open(io.BytesIO(self.data)))).float()
model = torch.nn.Linear(64, 1)
for batch in DataLoader(Pictures(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
    model(batch).square().mean().backward()
    model.zero_grad()
"""
SETTINGS = {
    "attr": (TRAINS, "cudnn.deterministic=true"),
    "call": (TRAINS, "matmul.fp32_precision=high"),
    "method": (TRAINS, "transfer.non_blocking=true"),
    "torch.utils.data.DataLoader": (TRAINS, "loader.num_workers=1"),
    "channels_last": (TRAINS, "layout.channels_last=true"),
    "autocast": (TRAINS, "precision.autocast=bf16"),
    "compile": (TRAINS, "compile.mode=default"),
    "torch.optim.Adam": (TRAINS, "optimizer.fused=true"),
    "grad_mode": (SERVES, "grad.mode=no_grad"),
    "quantize": (SERVES, "precision.quantize=int8-weights"),
    "decode": (DECODES, "decode.backend=opencv"),
}
"""By the kind of each site that can be switched, a program and a setting."""
NO_COPY = "the program made no such copy"
"""Reason of the only setting that does not act without a GPU."""


@pytest.fixture(params=[TRAINS, SERVES, DECODES], ids=["trains", "serves", "decodes"])
def program(request, target_python):
    if request.param is DECODES:
        imports = subprocess.run([target_python, "-c", "import PIL, cv2"], capture_output=True)
        if imports.returncode:
            pytest.skip("Pillow or OpenCV is not installed")
    return request.param


@pytest.fixture
def planned(tmp_path, program):
    """The settings of the program, as they stand in a plan."""
    texts = [text for made_for, text in SETTINGS.values() if made_for is program]
    _, plan = environment.build(
        [knobs.parse(text) for text in texts], dict(os.environ), run_dir=tmp_path, facts={}
    )
    return msgspec.to_builtins(plan)


def told(answers):
    return {one.knob: (one.found, one.ok) for one in answers if NO_COPY not in one.detail}


def expected(planned):
    texts = {
        one["knob"]: str(one["value"]).lower() for one in planned if one["knob"] != "transfer.non_blocking"
    }
    return {knob: (text, True) for knob, text in texts.items()}


def test_each_site_that_can_be_switched_has_a_setting_here():
    # A delay is no setting: no knob asks for it.
    switched = {kind for kind, site in SITES.items() if site.is_switched and not issubclass(site, DelaySite)}
    assert SETTINGS.keys() == switched
    for kind, (_, text) in SETTINGS.items():
        assert site_of(msgspec.to_builtins(knobs.get(text.partition("=")[0]).site)) is SITES[kind]


def test_each_site_says_how_it_is_read_back():
    for site in SITES.values():
        assert site.read_one is not Site.read_one, site.__name__


def test_each_switched_site_can_be_turned_off():
    for site in SITES.values():
        if site.is_switched and not site.wants_around and not site.acts_between_steps:  # where it is on alone
            assert site.off is not Site.off, site.__name__


def test_a_site_that_is_not_switched_says_so_when_it_is_asked_within_a_run():
    setting = {"knob": "env.SOME_NAME", "value": "1", "site": {"type": "env", "name": "SOME_NAME"}}
    for site in SITES.values():
        if not site.is_switched:
            assert site.cannot is Site.cannot, site.__name__
    assert SITES["env"]([setting], None, True).cannot() == ""
    assert (
        SITES["env"]([setting], None, False).cannot()
        == "env.SOME_NAME cannot be switched while the program runs"
    )


def test_settings_are_grouped_in_the_order_of_the_registry_when_they_come_in_another():
    decode = {"knob": "decode.backend", "site": {"type": "module", "action": "decode"}}
    loader = {
        "knob": "loader.num_workers",
        "site": {"type": "constructor", "targets": ["torch.utils.data.DataLoader"]},
    }
    unknown = {"knob": "new.knob", "site": {"type": "new"}}
    groups = by_site([unknown, decode, loader])
    assert list(groups) == [SITES["torch.utils.data.DataLoader"], SITES["decode"], None]


def test_each_setting_is_read_back_when_it_is_applied_at_the_start(
    program, planned, script, fork_under_agent
):
    ran = fork_under_agent([script(program)], settings=planned)
    assert (ran.returncode, ran.stderr, ran.stepping.errors) == (0, "", [])
    (record,) = [one for one in ran.records if one.last(SettingsReadBack)]
    answers = record.last(SettingsReadBack).settings
    assert len(answers) == len(planned)
    assert told(answers) == expected(planned)


def test_each_setting_is_read_back_when_it_is_switched_within_a_run(
    program, planned, script, fork_under_agent
):
    arms = [[setting] for setting in planned]
    order = {"type": "switch-arms", "at_step": 12, "arms": arms, "num_blocks": 1, "stretch_steps": 2}
    ran = fork_under_agent([script(program)], tasks=[order])
    assert (ran.returncode, ran.stderr, ran.stepping.errors) == (0, "", [])
    (record,) = [one for one in ran.records if one.last(ArmsCompared)]
    answers = [answer for block in record.all(Block) for answer in block.readback]
    assert told(answers) == expected(planned)
    given_up = {planned[event.arm]["knob"]: event.reason for event in record.all(ArmGivenUp)}
    assert len(answers) + len(given_up) == len(planned)
    assert all(NO_COPY in reason for reason in given_up.values())
