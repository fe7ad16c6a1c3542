"""`dynotune claims` from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from dynotune import cli
from dynotune.claims import all_claims, read


@pytest.fixture
def claims(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*argv, exit_code=0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["claims", *map(str, argv)])
        said = capsys.readouterr()
        assert end.value.code == exit_code, said.err
        return said.out, said.err

    return call


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> bytes:
    """Evidence on one claim, of this machine."""
    folder = tmp_path_factory.mktemp("claims")
    file = folder / "evidence.json"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setenv("XDG_STATE_HOME", str(folder))
        cli.main(["claims", "run", "map-of-256-mb", "--python", sys.executable, "--output", str(file)])
    assert not end.value.code
    return file.read_bytes()


def test_claims_are_listed_and_filtered(claims):
    out, _ = claims("list", "--filter", "prefetch", "--json", "-")
    assert [one["id"] for one in json.loads(out)] == [
        claim.id for claim in all_claims() if "prefetch" in claim.id + claim.says.lower()
    ]
    assert "prefetch-factor-2" in claims("list", "--filter", "prefetch")[0]


def test_a_claim_is_shown_with_its_test(claims):
    out, _ = claims("show", "benchmark-takes-fastest")
    for part in ("It affects only convolutions.", "cudnn.benchmark=true", "needs gpu"):
        assert part in out


def test_an_unknown_claim_offers_the_nearest(claims):
    assert "benchmark-dynamic" in claims("run", "benchmark-dynamc", exit_code=2)[1]
    assert "more-workers" in claims("show", "more-worker", exit_code=2)[1]


def test_neither_claims_nor_all_is_refused(claims):
    assert "--all" in claims("run", exit_code=2)[1]
    assert "--baseline" in claims("run", "2.13", "--fail-on", "flipped", exit_code=2)[1]


def test_evidence_is_kept_gone_on_with_and_compared(claims, tmp_path):
    file, options = (
        tmp_path / "evidence.json",
        ("--python", sys.executable, "--output", tmp_path / "evidence.json"),
    )
    out, _ = claims("run", "map-of-256-mb", *options)
    assert "refuted" in out
    first = file.read_bytes()
    claims("run", "map-of-256-mb", *options)
    assert file.read_bytes() == first, "it was tested again"
    claims("run", "map-of-256-mb", "jit-cache-4-gb", *options)
    assert [one.verdict for one in read(file)[0].evidence] == ["refuted", "holds"]
    assert "holds" in claims("verify", file)[0]
    claims("run", "jit-cache-4-gb", "--python", sys.executable, "--baseline", file, "--fail-on", "flipped")


def test_a_verdict_that_flipped_is_a_gate(claims, tmp_path, monkeypatch):
    file = tmp_path / "before.json"
    claims("run", "workspace-api", "--python", sys.executable, "--output", file)
    monkeypatch.setattr("dynotune.claims.running._answer", lambda *_: {"so": False, "seen": "torch: 2.11"})
    bundle, _ = read(file)
    told = ("run", "workspace-api", "--python", sys.executable, "--baseline", file)
    if bundle.evidence[0].verdict != "refuted":
        assert "flipped: workspace-api" in claims(*told)[1]
        claims(*told, "--fail-on", "flipped", exit_code=1)


def test_a_spent_budget_leaves_claims_and_says_so(claims, monkeypatch):
    monkeypatch.setattr("time.monotonic", iter(range(0, 10**9, 100)).__next__)
    _, err = claims("run", "map-of-256-mb", "jit-cache-4-gb", "--budget", "1s")
    assert "claims are left" in err


def test_an_edited_bundle_is_refused(claims, tmp_path, bundle):
    file = tmp_path / "evidence.json"
    file.write_bytes(bundle.replace(b'"refuted"', b'"holds"'))
    assert "edited or damaged" in claims("verify", file, exit_code=3)[1]


def test_evidence_of_another_machine_is_not_mixed_with_this_one(claims, tmp_path, bundle, monkeypatch):
    file = tmp_path / "evidence.json"
    file.write_bytes(bundle)
    monkeypatch.setattr("dynotune.claims.bundles.facts_of", lambda spec: {"host.cpu": "another"})
    assert "another machine" in claims("run", "2.13", "--output", file, exit_code=2)[1]
