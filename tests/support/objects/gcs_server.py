"""gcp-storage-emulator with what it lacks: conditions, ETags, listings in pages, ends of sessions, the XML API for readers.

Run as a program: ``python -m tests.support.objects.gcs_server PORT``.
"""

import base64
import sys
from email.utils import formatdate
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import escape

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import RESUMABLE_DIR, Storage

PAGE_KEYS = 100
BUCKET = r"(?P<bucket_name>[^/]+)"  # readers encode its hyphens
OBJECT = r"(?P<object_id>.*[^/]+)"
CANCELLED = SimpleNamespace(value=499, phrase="Client Closed Request")


def find(request: Any, storage: Any, name: str | None = None) -> Any:
    """Return the resource of an object; None if there is none."""
    try:
        return storage.get_file_obj(request.params["bucket_name"], name or request.params["object_id"])
    except NotFound:
        return None


def fails(request: Any, response: Any, storage: Any, name: str | None = None) -> bool:
    """Answer a request whose condition does not hold."""
    expected = request.query.get("ifGenerationMatch")
    found = find(request, storage, name)
    if expected is None or expected[0] == (found["generation"] if found else "0"):
        return False
    response.status = HTTPStatus.PRECONDITION_FAILED
    response.json({"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}})
    return True


def insert(request: Any, response: Any, storage: Any) -> None:
    if request.data is None:
        request._data = b""
    if not fails(request, response, storage, request.query["name"][0]):
        objects.insert(request, response, storage)


def upload_partial(request: Any, response: Any, storage: Any) -> None:
    request.data  # noqa: B018 - the client sends it before it reads
    is_last = not request.get_header("Content-Range", "").endswith("/*")
    is_open = request.query["upload_id"][0] in storage.resumable
    if not (is_last and is_open and fails(request, response, storage, request.query["name"][0])):
        objects.upload_partial(request, response, storage)


def answer_incomplete(response: Any, storage: Any, upload_id: str, fallback_end: int = 0) -> None:
    response.status = objects.GoogleHTTPStatus.RESUME_INCOMPLETE
    if held := storage.get_resumable_byte_count(upload_id):
        response["Range"] = f"bytes=0-{held - 1}"


def cancel(request: Any, response: Any, storage: Any) -> None:
    upload = request.query["upload_id"][0]
    response.status = CANCELLED if upload in storage.resumable else HTTPStatus.NOT_FOUND
    storage.resumable.pop(upload, None)
    storage._delete_file(RESUMABLE_DIR, storage.safe_id(upload))


def delete(request: Any, response: Any, storage: Any) -> None:
    if not fails(request, response, storage):
        objects.delete(request, response, storage)


def make_etag(found: Any) -> str:
    """Return the ETag of the XML API: the MD5 of the content."""
    return f'"{base64.b64decode(found["md5Hash"]).hex()}"'


def list_page(request: Any, storage: Any, token: str) -> tuple[list[Any], str | None]:
    prefix = request.query.get("prefix", [None])[0]
    found, _ = storage.get_file_list(request.params["bucket_name"], prefix, None, None, soft_deleted=False)
    begin = int(request.query.get(token, ["0"])[0])
    rest = sorted(found, key=lambda one: one["name"])[begin:]
    return rest[:PAGE_KEYS], str(begin + PAGE_KEYS) if len(rest) > PAGE_KEYS else None


def list_json(request: Any, response: Any, storage: Any) -> None:
    try:
        items, following = list_page(request, storage, "pageToken")
    except NotFound:
        response.status = HTTPStatus.NOT_FOUND
        response.json({"error": {"code": 404, "message": "The specified bucket does not exist."}})
        return
    response.json({"items": items} | ({"nextPageToken": following} if following else {}))


def list_xml(request: Any, response: Any, storage: Any) -> None:
    response["Content-Type"] = "application/xml"
    try:
        items, following = list_page(request, storage, "continuation-token")
    except NotFound:
        response.status = HTTPStatus.NOT_FOUND
        response.write("<Error><Code>NoSuchBucket</Code></Error>")
        return
    contents = "".join(
        f"<Contents><Key>{escape(one['name'])}</Key><Size>{one['size']}</Size><ETag>{escape(make_etag(one))}</ETag>"
        f"<LastModified>{one['updated'][:23]}Z</LastModified></Contents>"
        for one in items
    )
    token = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    truncated = str(bool(following)).lower()
    response.write(
        f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{contents}</ListBucketResult>"
    )


def download(request: Any, response: Any, storage: Any) -> None:
    found = find(request, storage)
    if found is None:
        response.status = HTTPStatus.NOT_FOUND
        response["Content-Type"] = "application/xml"
        has_bucket = request.params["bucket_name"] in storage.buckets
        response.write(f"<Error><Code>{'NoSuchKey' if has_bucket else 'NoSuchBucket'}</Code></Error>")
        return
    if request.get_header("If-Match", make_etag(found)) != make_etag(found):
        response.status = HTTPStatus.PRECONDITION_FAILED
        return
    if fails(request, response, storage):
        return
    objects.download(request, response, storage)
    response["ETag"] = make_etag(found)
    response["x-goog-generation"] = found["generation"]
    response["Last-Modified"] = formatdate(int(found["generation"]) / 1e9, usegmt=True)


def list_sessions(request: Any, response: Any, storage: Any) -> None:
    """Say what only the server knows: the keys of the sessions that are open."""
    bucket = request.params["bucket_name"]
    response.json([one["name"] for one in storage.resumable.values() if one["bucket"] == bucket])


def forget_session(request: Any, response: Any, storage: Any) -> None:
    """Forget an open session, as if its time were over."""
    bucket = request.params["bucket_name"]
    del storage.resumable[next(key for key, one in storage.resumable.items() if one["bucket"] == bucket)]


def get(request: Any, response: Any, storage: Any) -> None:
    (download if "alt" in request.query else objects.get)(request, response, storage)


class Handler(server.RequestHandler):
    def do_HEAD(self) -> None:  # noqa: N802 - of the base class
        server.Router(self).handle("GET")  # nobody reads the body

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
        pass


def serve(port: int) -> None:
    # It would write all it knows with each request, to be read when it starts again.
    Storage._write_config_to_file = lambda _: None
    objects._resumable_incomplete = answer_incomplete
    server.RequestHandler = Handler
    server.HANDLERS = (
        (rf"^/upload/storage/v1/b/{BUCKET}/o$", {"POST": insert, "PUT": upload_partial, "DELETE": cancel}),
        (rf"^/storage/v1/b/{BUCKET}/o$", {"GET": list_json}),
        (rf"^/storage/v1/b/{BUCKET}/o/{OBJECT}$", {"GET": get, "DELETE": delete}),
        (r"^/storage/v1/b$", {"POST": server.buckets.insert}),
        (rf"^/sessions/{BUCKET}$", {"GET": list_sessions}),
        (rf"^/forget/{BUCKET}$", {"GET": forget_session}),
        (rf"^/{BUCKET}$", {"GET": list_xml}),
        (rf"^/{BUCKET}/{OBJECT}$", {"GET": download}),
    )
    server.create_server("127.0.0.1", port, in_memory=True).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
