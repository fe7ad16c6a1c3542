"""What holds for every test: programs that run side by side leave each other the cores."""

import os

# Threads of OpenMP wait for work by spinning, which takes the core of whoever runs beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
