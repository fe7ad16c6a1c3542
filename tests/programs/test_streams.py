"""Programs that serve streams with a fault: each is found by its diagnosis, and the clean one has none."""

import sys

import pytest

from dynotune import api
from lab.faults.manifest import FAULTS, PROGRAMS

OF_STREAMS = [fault for fault in FAULTS if fault.program == "streams.py"]
IDS = {fault.id for fault in OF_STREAMS}

pytestmark = pytest.mark.long


def diagnosed(args, dose, tmp_path):
    command = [sys.executable, str(PROGRAMS / "streams.py"), *args, "--dose", str(dose)]
    found = api.diagnose(command, delays=False, lock=False, run_dir=tmp_path, progress=False)
    return {finding.id for finding in found.findings} & IDS


@pytest.mark.parametrize("fault", OF_STREAMS, ids=lambda fault: fault.id)
def test_fault_of_serving_is_found_when_a_program_carries_it(fault, tmp_path):
    if fault.id in ("frames-decoded-in-step", "letterbox-on-cpu"):
        pytest.importorskip("cv2")
    assert diagnosed(fault.args, max(fault.doses), tmp_path) == {fault.id}


def test_no_fault_of_serving_is_found_when_one_thread_serves_batches(tmp_path):
    assert not diagnosed(OF_STREAMS[0].args, 0, tmp_path)
