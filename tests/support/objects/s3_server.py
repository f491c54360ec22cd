"""moto's S3 in this process, with short listings, and ``If-Match`` where uploads are completed.

What it does anew for each request is left out.
"""

import io
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

PAGE_KEYS = 100


class S3Server:
    """Answers requests as S3 would; `store` is what it keeps, for tests to look into and to change."""

    def __init__(self) -> None:
        from moto import settings
        from moto.moto_server.werkzeug_app import create_backend_app
        from moto.s3.models import s3_backends
        from moto.s3.responses import S3Response

        if S3Response._key_response_post is not _complete:
            _POSTS.append(S3Response._key_response_post)
            S3Response._key_response_post = _complete
        _leave_out_repetitions()
        settings.get_s3_default_max_keys = lambda: PAGE_KEYS
        self._app = create_backend_app("s3")
        self.store = s3_backends["123456789012"]["aws"]

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body of the answer to a request."""
        said: list[Any] = []
        raw, _, query = path.partition("?")
        fields = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        environment = fields | {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(raw).decode("latin1"),
            "QUERY_STRING": query,
            "REQUEST_URI": path,
            "RAW_URI": path,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": headers.get("Content-Type", ""),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
        }
        content = b"".join(self._app(environment, lambda *given: said.append(given)))
        return int(said[0][0].partition(" ")[0]), said[0][1], content


def _leave_out_repetitions() -> None:
    """Have boto3 not find out for each session and request what is always the same: a fifth of the time of such tests."""
    from botocore import endpoint, hooks

    begin, names = hooks.EventAliaser.__init__, {}

    def share_names(aliaser: Any, emitter: Any, aliases: Any = None) -> None:
        begin(aliaser, emitter, aliases)
        aliaser._alias_name_cache = names

    hooks.EventAliaser.__init__ = share_names
    hooks.accepts_kwargs = lambda _: True
    endpoint.get_environ_proxies = lambda _: {}


_POSTS: list[Any] = []
"""What answered before."""


def _complete(
    response: Any, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
) -> Any:
    """Answer a request about an upload; an upload that was completed already is completed."""
    from moto.s3.exceptions import MissingKey, PreconditionFailed

    expected, uploads = response.headers.get("If-Match"), query.get("uploadId")
    if expected and uploads:
        found = response.backend.get_object(bucket_name, key_name)
        if found is None:
            raise MissingKey
        is_done = found.multipart and found.multipart.id == uploads[0]
        if not is_done and found.etag.strip('"') != expected.strip('"'):
            raise PreconditionFailed("If-Match")
    return _POSTS[0](response, request, body, bucket_name, query, key_name)
