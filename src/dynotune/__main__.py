"""`python -m dynotune`."""

from dynotune.cli import main

if __name__ == "__main__":
    main()
