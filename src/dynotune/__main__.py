"""`python -m dynotune`, and `dynotune`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. An interrupt while it is imported ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dynotune import cli

    signal.signal(signal.SIGINT, handler)
    cli.main()


if __name__ == "__main__":
    main()
