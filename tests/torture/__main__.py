"""``python -m tests.torture``: see `tests.torture.campaign`."""

import sys

from tests.torture.campaign import main

if __name__ == "__main__":
    sys.exit(main())
