"""Products of float32 matrices that do not use tensor cores, and the rates of the types that could."""

from dynotune.doctor.bounds import capability, is_at
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.attribution import LostTime

RATES = {
    (8, 0): (1.0, 8.0, 16.0),
    (8, 6): (1.0, 2.0, 4.0),
    (8, 7): (1.0, 4.0, 8.0),
    (8, 9): (1.0, 2.0, 4.0),
    (9, 0): (1.0, 7.4, 14.8),
    (10, 0): (1.0, 15.0, 30.0),
    (10, 3): (1.0, 15.0, 30.0),
    (12, 0): (1.0, 2.0, 4.0),
}
"""Dense rates of float32, TF32 and half types relative to float32, by capability. From NVIDIA's data sheets,
for the fastest device of each (A100, A40, Orin, L40S, H100, B200, B300, RTX PRO 6000)."""


def rates(view: ObservationView) -> tuple[float, float, float]:
    """Return the rates of float32, TF32 and half types. An unknown device counts as the one with the most to
    gain."""
    return RATES.get(capability(view), max(RATES.values()))


def is_ieee(view: ObservationView) -> bool:
    """Tell whether the program's float32 products keep all bits, as is torch's default."""
    return view.process.live.get("live.matmul_fp32_precision") == "ieee"


def without_tf32(view: ObservationView) -> list[LostTime]:
    """Return the float32 products that do not use tensor cores, except those of `sdpa-math`."""
    return [
        loss for loss in view.losses("fp32-matmul-no-tf32") if not is_at(loss.where, "scaled_dot_product")
    ]


def saved_by_tf32(view: ObservationView) -> float:
    """Return what TF32 saves of the device's work, as a share of a step; the host may hide a part of it."""
    if view.variable("NVIDIA_TF32_OVERRIDE") == "0":
        return 0.0
    float32, tf32, _ = rates(view)
    return sum(loss.share for loss in without_tf32(view)) * (1 - float32 / tf32)
