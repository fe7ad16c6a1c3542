"""What unpacked caches depend on, as it is noted beside them and asked at a later start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynotune.launch.caches import contents, unpacked_origin
from dynotune.schema.cache_pack import Conditions
from dynotune.schema.facts import Unknown

from .. import packs

GRAPH = packs.listed("fxgraph/a/b", cache="inductor")
KNOWN = {
    "gpu.count": 0,
    "python.version": "3.12.1",
    "torch.version": "2.11.0",
    "torch.cuda": None,
    "package.triton": "3.6.0",
}
"""Facts of a machine without a GPU."""


def unpacked(folder: Path, env: dict[str, str] | None = None, **conditions: object) -> dict[str, str]:
    """Note beside caches what they depend on: this machine, but for `conditions`; return the variables."""
    here = unpacked_origin.conditions.of_facts(KNOWN, {}, folder)
    manifest = packs.manifest(GRAPH, variables=env or {})
    manifest = msgspec.structs.replace(manifest, conditions=msgspec.structs.replace(here, **conditions))
    variables = contents.environment(folder)
    unpacked_origin.write(folder, manifest.origin)
    return variables


def test_facts_are_empty_when_no_variable_names_unpacked_caches(tmp_path):
    unpacked(tmp_path)
    assert unpacked_origin.facts(KNOWN, {}, tmp_path) == {}
    (tmp_path / unpacked_origin.FILE).unlink()
    assert unpacked_origin.facts(KNOWN, contents.variables(tmp_path), tmp_path) == {}


def test_facts_name_nothing_when_the_caches_fit(tmp_path):
    facts = unpacked_origin.facts(KNOWN, unpacked(tmp_path), tmp_path)
    assert facts == {
        "packed.folder": str(tmp_path),
        "packed.dangerous": [],
        "packed.useless": [],
        "packed.variables": [],
    }


def test_facts_name_what_differs_when_the_caches_are_of_another_torch_and_variable(tmp_path):
    env = unpacked(tmp_path, {"TORCHINDUCTOR_FREEZING": "1"}, torch="2.13.0")
    facts = unpacked_origin.facts(KNOWN, env, tmp_path)
    assert facts["packed.useless"] == ["torch: packed with 2.13.0, here 2.11.0"]
    assert facts["packed.variables"] == ["TORCHINDUCTOR_FREEZING: packed with 1, here not set"]


def test_facts_are_unknown_when_a_condition_is_unknown(tmp_path):
    env = unpacked(tmp_path)
    facts = unpacked_origin.facts({**KNOWN, "torch.version": Unknown("nobody")}, env, tmp_path)
    assert facts["packed.useless"] == Unknown("torch: packed with 2.11.0, here unknown")


def test_facts_are_empty_when_the_note_is_damaged(tmp_path):
    env = unpacked(tmp_path, **dict.fromkeys(Conditions.__struct_fields__))
    (tmp_path / unpacked_origin.FILE).write_text("{")
    assert unpacked_origin.facts(KNOWN, env, tmp_path) == {}
