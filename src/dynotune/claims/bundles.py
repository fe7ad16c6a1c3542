"""Store evidence in a JSON file with a checksum, written completely or not at all. Files of others are
untrusted."""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import dynotune
from dynotune.claims.ledger import all_claims
from dynotune.claims.running import judged, program_hash
from dynotune.measure.comparison import judge_comparison
from dynotune.measure.live import facts_of
from dynotune.schema import document, untrusted
from dynotune.schema.claims import SETTLED, Bundle, Evidence
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import RecordError, StatisticsError, may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec

GPU = ("gpu.name", "gpu.count", "gpu.driver")
FACTS = ("host.cpu", "host.num_cores", "host.kernel", *GPU, "python.version", "torch.version")
LARGEST_BYTES = 16 << 20


def new_bundle(spec: RunSpec) -> Bundle:
    """Return a bundle without evidence, with the facts on this machine and the interpreter of `spec`."""
    facts = facts_of(spec)
    return Bundle(
        version=dynotune.__version__, facts={name: facts.get(name, Unknown("not asked")) for name in FACTS}
    )


def with_evidence(bundle: Bundle, evidence: Evidence) -> Bundle:
    """Return the bundle with `evidence`, which replaces earlier evidence for the same claim."""
    kept = [one for one in bundle.evidence if one.id != evidence.id]
    return msgspec.structs.replace(bundle, evidence=[*kept, evidence])


def write(path: Path, bundle: Bundle) -> None:
    """Write the bundle with its checksum, without secrets. Raises CannotRunHere if that fails."""
    kept = document.without_secrets(msgspec.structs.replace(bundle, sha256=""))
    document.write(path, msgspec.structs.replace(kept, sha256=_digest(document.parse(document.encode(kept)))))


def read(path: Path) -> tuple[Bundle, list[str]]:
    """Return a bundle, and a note for each claim whose evidence cannot be judged again.

    Raises RecordError if the file is damaged or edited, or a verdict does not follow from the measured
    values.
    """
    with may_fail(f"read {path}", "", RecordError):
        raw = untrusted.read(path, LARGEST_BYTES)
    bundle = document.decode(raw, Bundle, name=str(path))
    again = "Do not use it; make it again with dynotune claims run --output."
    if _digest(json.loads(raw.decode(errors="replace"))) != bundle.sha256:
        raise RecordError(f"{path} was edited or damaged: its checksum is another.", hint=again)
    claims, notes, found = {claim.id: claim for claim in all_claims()}, [], []
    for evidence in bundle.evidence:
        found.append(evidence)
        claim = claims.get(evidence.id)
        if claim is None or evidence.program != program_hash(claim):
            notes.append(
                f"{evidence.id}: {'not in this ledger' if claim is None else 'tested by another program'}"
            )
            continue
        follows = all(map(_follows, [*evidence.fair, *evidence.elsewhere]))
        # Use this version's words: the words in the file may be from an earlier version, or invented.
        found[-1] = judged(claim, evidence)
        if not follows or found[-1].verdict != evidence.verdict:
            raise RecordError(f"{path}: the verdict of {evidence.id} is not what its values say.", hint=again)
    return msgspec.structs.replace(bundle, evidence=found), notes


def _digest(plain: dict[str, Any]) -> str:
    kept = {name: value for name, value in plain.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _follows(run: Comparison) -> bool:
    """Return whether a comparison's verdict follows from its pairs."""
    if run.verdict not in ("faster", "slower") and not run.pairs:
        return True
    try:
        found = judge_comparison(run, precision=math.inf, ended=True)
    except StatisticsError:
        return False
    return found.verdict == run.verdict


def flipped(now: Bundle, kept: Sequence[Evidence]) -> list[tuple[Evidence, Evidence]]:
    """Return the evidence before and now of each claim whose settled verdict has changed."""
    before = {one.id: one for one in kept if one.verdict in SETTLED}
    settled = [one for one in now.evidence if one.verdict in SETTLED and one.id in before]
    return [(before[one.id], one) for one in settled if before[one.id].verdict != one.verdict]
