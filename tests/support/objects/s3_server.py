"""moto's server, which speaks the protocol of S3, with short listings, and ``If-Match`` where uploads are completed.

What it does anew for each request is left out.

Run as a program: ``python -m tests.support.objects.s3_server PORT``.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from moto import backends, server
from moto.s3.exceptions import MissingKey, PreconditionFailed
from moto.s3.responses import S3Response

PAGE_KEYS = 100


def complete(
    response: Any, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
) -> Any:
    """Answer a request about an upload; an upload that was completed already is completed."""
    expected, uploads = response.headers.get("If-Match"), query.get("uploadId")
    if expected and uploads:
        found = response.backend.get_object(bucket_name, key_name)
        if found is None:
            raise MissingKey
        is_done = found.multipart and found.multipart.id == uploads[0]
        if not is_done and found.etag.strip('"') != expected.strip('"'):
            raise PreconditionFailed("If-Match")
    return post(response, request, body, bucket_name, query, key_name)


post = S3Response._key_response_post


def serve(port: int) -> None:
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE_KEYS)
    # It would look through its own folder each time.
    names = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names
    S3Response._key_response_post = complete
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.main(["-H", "127.0.0.1", "-p", str(port)])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
