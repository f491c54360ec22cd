"""moto's server, which speaks the protocol of S3, with short listings, and without what it does anew for each request.

Run as a program: ``python -m tests.support.objects.s3_server PORT``.
"""

from __future__ import annotations

import logging
import os
import sys

from moto import backends, server

PAGE_KEYS = 100


def serve(port: int) -> None:
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE_KEYS)
    # It would look through its own folder each time.
    names = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.main(["-H", "127.0.0.1", "-p", str(port)])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
