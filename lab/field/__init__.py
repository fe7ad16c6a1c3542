"""Programs that nobody of this project wrote: where they are from, what they read, how they are started."""
