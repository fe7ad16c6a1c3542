"""What a TensorRT engine needs: profiles for shapes that were seen, and a script for the tools that build it.

Nothing here starts the user's command or TensorRT, or names torch. Shapes are recorded by `diagnose`.
"""

from dynotune.engines.profiles import num_elements, plan_profiles, shapes_for
from dynotune.engines.script import build_script

__all__ = ["build_script", "num_elements", "plan_profiles", "shapes_for"]
