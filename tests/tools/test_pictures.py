"""The picture of the README: a real diagnosis, as a terminal of 80 × 24 shows it now."""

from __future__ import annotations

import re

from tools import pictures


def test_picture_is_what_the_report_says_of_the_kept_diagnosis():
    assert pictures.PICTURE.read_text("utf-8") == pictures.svg(), "python tools/pictures.py writes it anew"


def test_picture_asks_nothing_of_the_network_and_ends_with_the_verdict():
    text = pictures.svg()
    assert not re.search(r"@font-face|href=|url\((?!#)|<script", text)
    assert text.index("num-workers-zero") < text.index("verdict")
    assert len(set(re.findall(r"clip-line-(\d+)", text))) <= 30
