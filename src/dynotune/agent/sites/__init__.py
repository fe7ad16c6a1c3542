"""Places where settings act: one class each, for settings of the whole program and for turns within a run."""
