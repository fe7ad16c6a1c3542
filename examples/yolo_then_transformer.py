"""Build a YOLO model, then run a small transformer at batch 1: does the one slow the other down?

python yolo_then_transformer.py --steps 2000

Needs the package `ultralytics`, which is under the AGPL-3.0: mind what that asks of programs that import
it. The model is built from its description with random weights; nothing is downloaded.
"""

import argparse

import torch
from infer_transformer import infer
from ultralytics import YOLO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    detector = YOLO("yolo11n.yaml")
    print(f"detector with {sum(p.numel() for p in detector.model.parameters())} parameters", flush=True)
    infer(args.steps, args.device)


if __name__ == "__main__":
    main()
