"""Environments with other versions of a package, made by pip from wheels in a folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from dynotune.bisect.line import NotMade
from dynotune.bisect.packages import Environments, Versions
from dynotune.schema.run import RunSpec


def write_wheel(folder, version, content):
    """Write a wheel of the package `planted_work`, by hand."""
    name = f"planted_work-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("planted_work.py", content)
        about = f"Metadata-Version: 2.1\nName: planted-work\nVersion: {version}\n"
        wheel.writestr(f"{name}.dist-info/METADATA", about)
        kind = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}.dist-info/WHEEL", kind)
        wheel.writestr(f"{name}.dist-info/RECORD", "")


@pytest.mark.long
def test_versions_are_listed_and_made_from_wheels_beside_the_commands_own_packages(tmp_path):
    pytest.importorskip("pip")
    wheels, made = tmp_path / "wheels", tmp_path / "environments"
    wheels.mkdir()
    for version in ("1.0", "1.1", "1.2"):
        write_wheel(wheels, version, f"VERSION = {version!r}\n")
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = RunSpec(command=[sys.executable, "train.py"], cwd=tmp_path, env=env, base=tmp_path)
    environments = Environments(run, made)
    line = Versions("planted-work", "1.0", "1.2", environments)
    assert [point.name for point in line.points] == ["1.0", "1.1", "1.2"]
    (setting,) = line.settings(1)
    program = "import planted_work, msgspec; print(planted_work.VERSION)"
    assert subprocess.check_output([str(setting.value), "-c", program], text=True).strip() == "1.1"
    assert line.settings(1) == [setting]
    with pytest.raises(NotMade, match="No matching distribution"):
        environments.settings({"planted-work": "9.9"})
