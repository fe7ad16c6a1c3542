"""Prepare a TensorRT engine: profiles for shapes that were recorded, and a script for the tools that build
the engine.

This room starts neither the user's command nor TensorRT, and does not name torch. `diagnose` records the
shapes.
"""

from dynotune.engines.onnx_model import shapes_for
from dynotune.engines.profiles import num_elements, plan_profiles
from dynotune.engines.script import build_script

__all__ = ["build_script", "num_elements", "plan_profiles", "shapes_for"]
