"""``python -m recshuf``: the same as the command ``recshuf``."""

from recshuf.cli.entry import run

if __name__ == "__main__":
    run()
