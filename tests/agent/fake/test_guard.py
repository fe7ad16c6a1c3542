"""A torch that cannot be run with a device that is not there says so, and is left as it is."""

from types import SimpleNamespace

import pytest

from dynotune.agent.fake import guard


def test_a_torch_without_the_guard_is_refused_by_its_version():
    with pytest.raises(guard.CannotPretend, match=r"2\.4\.1"):
        guard.install(SimpleNamespace(_C=SimpleNamespace(), __version__="2.4.1"))


def test_a_torch_whose_libraries_are_elsewhere_is_refused(tmp_path):
    parts = SimpleNamespace(_ensureCUDADeviceGuardSet=lambda: None)
    torch = SimpleNamespace(_C=parts, __version__="2.13.0", __file__=str(tmp_path / "__init__.py"))
    with pytest.raises(guard.CannotPretend, match="does not let itself be changed"):
        guard.install(torch)
