"""``python -m recshuf``: the same as the command ``recshuf``."""

import sys

from recshuf.cli import main

if __name__ == "__main__":
    sys.exit(main())
