"""The image of the example, followed in a chroot where one is at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import image_in_chroot


def test_instructions_are_read_with_continued_lines_and_without_comments(tmp_path):
    file = tmp_path / "Dockerfile"
    file.write_text('# note\nFROM x\nRUN a && \\\n    b\n\nCMD ["doctor"]\n')
    assert list(image_in_chroot.instructions(file)) == [
        ("FROM", "x"),
        ("RUN", "a &&     b"),
        ("CMD", '["doctor"]'),
    ]


def test_image_has_the_files_and_variables_of_its_instructions(tmp_path):
    image = image_in_chroot.Image(tmp_path)
    for name, rest in image_in_chroot.instructions(image_in_chroot.DOCKERFILE):
        if name != "RUN":
            image.follow(name, rest)
    assert (tmp_path / "opt/dynotune/pyproject.toml").is_file()
    assert (tmp_path / "work/train.py").is_file()
    assert (image.env["PYTHONDONTWRITEBYTECODE"], image.entry, image.words) == ("", ["dynotune"], ["doctor"])


@pytest.mark.long
def test_image_diagnoses_a_program_when_a_system_is_at_hand():
    root = os.environ.get("DYNOTUNE_IMAGE_ROOT")
    if root is None or os.geteuid() != 0:
        pytest.skip("no system for a chroot: DYNOTUNE_IMAGE_ROOT, and root")
    words = [
        sys.executable,
        str(Path(image_in_chroot.__file__)),
        root,
        "diagnose",
        "--no-lock",
        "--",
        "python",
        "train.py",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "verdict" in done.stdout and "A step takes" in done.stdout
