"""Detection with YOLO-shaped models, from frames on the host to boxes on the host.

`Detector` does all of it; `letterbox` and `nms` are its first and its last part, for programs with a loop of their own.
"""

from dynotune.runtime.vision.detections import Detections
from dynotune.runtime.vision.detector import Detector, DetectorStats
from dynotune.runtime.vision.serve import Served, Server, SourceStats

__all__ = ["Detections", "Detector", "DetectorStats", "Served", "Server", "SourceStats"]
