"""Timed starts, caches and GPU code in the terminal."""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.startup.caches import DANGER, packed_report, unpacked_report, warmed_report
    from dynotune.report.startup.device_code import device_code_report
    from dynotune.report.startup.starts import StartProgress, startup_report

__all__ = [
    "DANGER",
    "StartProgress",
    "cache_lines",
    "device_code_report",
    "packed_report",
    "startup_report",
    "unpacked_report",
    "warmed_report",
]

__getattr__ = lazy_face(
    __name__,
    {
        "DANGER": "caches",
        "StartProgress": "starts",
        "device_code_report": "device_code",
        "packed_report": "caches",
        "startup_report": "starts",
        "unpacked_report": "caches",
        "warmed_report": "caches",
    },
)
