"""Detect objects with YOLO-shaped models, from frames on the host to boxes on the host.

`Detector` does everything; `letterbox` and `nms` are its first and last stage, for programs with their own
loop.
"""

from dynotune.runtime.vision.detector import Detector, DetectorStats
from dynotune.runtime.vision.serve import Served, Server, SourceStats
from dynotune.runtime.vision.stages import Detections

__all__ = ["Detections", "Detector", "DetectorStats", "Served", "Server", "SourceStats"]
