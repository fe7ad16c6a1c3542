"""Video analytics with a YOLO object per camera thread, as support threads show it: read, predict, repeat.

    python benchmarks/programs/threaded_yolo.py --num-cams 4 [--weights yolo11n.pt] [--video street.mp4]

Without `--video`, cameras give noise; without `--weights`, the network has random weights.
"""

from __future__ import annotations

import argparse
import threading
import time

import cv2
import numpy as np
from ultralytics import YOLO


class FakeCapture:
    """Stands in for `cv2.VideoCapture` on a machine without cameras."""

    def __init__(self, width: int, height: int) -> None:
        rng = np.random.default_rng()
        self._frames = [rng.integers(0, 255, (height, width, 3), dtype=np.uint8) for _ in range(8)]
        self._next = 0

    def read(self) -> tuple[bool, np.ndarray]:
        self._next = (self._next + 1) % len(self._frames)
        return True, self._frames[self._next]


class CamThread(threading.Thread):
    def __init__(self, cam_id: int, args: argparse.Namespace) -> None:
        super().__init__(daemon=True, name=f"cam-{cam_id}")
        self.args = args
        self.seen = 0
        if args.video:
            self.cap = cv2.VideoCapture(args.video)
        else:
            self.cap = FakeCapture(args.width, args.height)
        self.model = YOLO(args.weights)

    def next_frame(self) -> np.ndarray:
        ok, frame = self.cap.read()
        if not ok:
            self.cap.set(cv2.CAP_PROP_POS_FRAMES, 0)
            ok, frame = self.cap.read()
        return frame

    def run(self) -> None:
        period = 1.0 / self.args.fps
        due = time.time()
        while True:
            frame = self.next_frame()
            results = self.model(frame, imgsz=self.args.imgsz, device=self.args.device, verbose=False)
            for box in results[0].boxes:
                self.seen += int(box.conf) >= 0
            due = max(due + period, time.time() - period)
            time.sleep(max(0.0, due - time.time()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-cams", type=int, default=1)
    parser.add_argument("--fps", type=float, default=25)
    parser.add_argument("--video")
    parser.add_argument("--weights", default="yolo11n.yaml")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--width", type=int, default=1920)
    parser.add_argument("--height", type=int, default=1080)
    args = parser.parse_args()
    threads = [CamThread(i, args) for i in range(args.num_cams)]
    for t in threads:
        t.model(t.next_frame(), imgsz=args.imgsz, device=args.device, verbose=False)  # warm up
    for t in threads:
        t.start()
    for t in threads:
        t.join()


if __name__ == "__main__":
    main()
