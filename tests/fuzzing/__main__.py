"""``python -m tests.fuzzing``: see `tests.fuzzing.campaign`."""

import sys

from tests.fuzzing.campaign import main

if __name__ == "__main__":
    sys.exit(main())
