"""A detector that sets the workspace of cuBLAS for the whole process when it is made."""

import os

from torch import nn


class YOLO:
    def __init__(self, model):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        self.name = model
        self.model = nn.Linear(256, 64)
