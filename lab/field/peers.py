"""Other tools on the same commands: how each is started, what it says, and why it cannot take a program."""

PEERS = ("train-doctor", "traceml", "aitune", "slowai", "pytorch-autotune")
