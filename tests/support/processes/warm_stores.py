"""A last import for servers that fork: it does what each child would do before its first request to S3."""

from __future__ import annotations

import gc

from recshuf.storage.s3_session import make_client, make_session

make_client(make_session({"region": "us-east-1"}), "http://127.0.0.1:1")
# A collection in a child would copy the memory of all objects.
gc.freeze()
