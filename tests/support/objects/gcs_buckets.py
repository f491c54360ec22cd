"""Buckets of an emulator of Google Cloud Storage, for tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.support.objects.object_server import FaultProxy

_OBJECT = r"POST .*name=[^&]*"
GCS_REQUESTS = {
    "journal": rf"{_OBJECT}\.entry",
    "run": rf"{_OBJECT}\.run",
    "claim": rf"{_OBJECT}00002\.run",
    "begin": "POST .*uploadType=resumable",
    "part": rf"({_OBJECT}\.tail|PUT .*upload_id=.* bytes \d+-\d+/\*)",
    "complete": r"PUT .*upload_id=.* bytes .*/\d+",
    "manifest": rf"{_OBJECT}\.out\.recshuf\.json",
    "list": "GET .*/o[?]prefix",
    "delete": "DELETE .*/o/",
}


def serve_gcs(port: int) -> Sequence[str]:
    """Return the command of a server."""
    return [sys.executable, "-m", "tests.support.objects.gcs_server", str(port)]


class GcsTestBucket(NamedTuple):
    """A bucket of one test, behind a proxy; see `tests.support.objects.object_server.Bucket`."""

    name: str
    proxy: FaultProxy
    client: Any
    """Session of requests."""
    server: str
    """URL of the server, without the proxy."""
    lists_uploads: bool = False
    refusal: tuple[int, str, str] = (401, "Unauthorized", r"access is denied \(401\)")
    requests: Mapping[str, str] = GCS_REQUESTS

    @property
    def url(self) -> str:
        return f"gs://{self.name}"

    @property
    def _objects(self) -> str:
        return f"{self.server}/storage/v1/b/{self.name}/o"

    def make(self) -> None:
        self.client.post(f"{self.server}/storage/v1/b", json={"name": self.name}).raise_for_status()

    def list_keys(self, prefix: str = "") -> list[str]:
        keys: list[str] = []
        given = {"prefix": prefix}
        while True:
            page = self.client.get(self._objects, params=given).json()
            keys += [one["name"] for one in page["items"]]
            if "nextPageToken" not in page:
                return keys
            given["pageToken"] = page["nextPageToken"]

    def list_uploads(self) -> list[str]:
        """Return the keys of open sessions."""
        return list(self.client.get(f"{self.server}/sessions/{self.name}").json())

    def read(self, key: str) -> bytes:
        reply = self.client.get(f"{self._objects}/{quote(key, safe='')}", params={"alt": "media"})
        reply.raise_for_status()
        return bytes(reply.content)

    def put(self, key: str, body: bytes) -> None:
        self.client.post(
            f"{self.server}/upload/storage/v1/b/{self.name}/o",
            params={"uploadType": "media", "name": key},
            data=body,
        ).raise_for_status()

    def delete(self, key: str) -> None:
        self.client.delete(f"{self._objects}/{quote(key, safe='')}")

    def begin_upload(self, key: str) -> None:
        given = {"uploadType": "resumable", "name": key}
        self.client.post(f"{self.server}/upload/storage/v1/b/{self.name}/o", params=given, json={})

    def abort_one(self) -> None:
        """Abort an open upload."""
        self.client.get(f"{self.server}/forget/{self.name}").raise_for_status()

    def damage_one(self) -> None:
        """Replace the tail of an open upload."""
        self.put(next(key for key in self.list_keys() if key.endswith(".tail")), b"other")

    def read_all(self, prefix: str = "") -> dict[str, bytes]:
        return {key: self.read(key) for key in self.list_keys(prefix)}
