"""Report which library's trainer runs the program's loop, and where the program makes it."""

from __future__ import annotations

import functools

from ..core.covers import covers
from ..core.source_location import line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Event, Log
    from ..core.hooks import AfterImport

TRAINERS = {
    # All subclasses of this data class call it, and only it.
    "transformers.training_args": ("TrainingArguments", "__post_init__", "transformers.TrainingArguments"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "__init__", "lightning.Trainer"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "__init__", "lightning.Trainer"),
    "accelerate.accelerator": ("Accelerator", "__init__", "accelerate.Accelerator"),
    "ultralytics.engine.trainer": ("BaseTrainer", "__init__", "ultralytics.train"),
}
"""By module, the class that a trainer's settings are given to, its method, and the trainer's name."""
MOST_EVENTS = 8


class Trainers:
    """Write an event `trainer` each time the program makes a trainer, with the user's line that does so."""

    def __init__(self, event: Event, log: Log) -> None:
        self._event, self._log = event, log
        self._places: list[tuple[str, str]] = []

    def install(self, hooks: AfterImport) -> None:
        for module in TRAINERS:
            hooks.call(module, functools.partial(self._cover, module))

    def _cover(self, name: str, module: Any) -> None:
        kind, method, trainer = TRAINERS[name]
        owner = getattr(module, kind)
        original = getattr(owner, method)

        @covers(owner, method)
        def made(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._tell(trainer)
            return original(self_, *args, **kwargs)

    def _tell(self, trainer: str) -> None:
        try:
            place = (trainer, line())
            if place not in self._places and len(self._places) < MOST_EVENTS:
                self._places.append(place)
                self._event({"event": "trainer", "name": place[0], "place": place[1]})
        except Exception as error:  # the program has its trainer all the same
            self._log("trainer", error)
