from __future__ import annotations

import pytest

from dynotune.schema import redaction


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(redaction, "_known", set())
