"""dynotune and its arguments, in a fork of an interpreter that has imported it."""

import os
import sys
from pathlib import Path

from dynotune import __main__ as typed
from dynotune.cli import run_options

# The kernel keeps showing the environment that the first interpreter was started in.
given = dict(os.environ)
run_options.environment = lambda: dict(given)
sys.argv[0] = typed.__file__
sys.path[0] = str(Path.cwd())
typed.main()
