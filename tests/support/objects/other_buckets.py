"""Buckets of emulators of Google Cloud Storage and of Azure Blob Storage (Azurite), for tests."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

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


# Azure

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every Azurite has."""
_BLOCK = r"PUT .*[?&]comp=block(&|$)"
AZURE_REQUESTS = {
    "journal": r"PUT .*\.entry",
    "run": r"PUT .*\.run",
    "claim": r"PUT .*/00002\.run",
    "begin": _BLOCK,  # an upload begins with its first block
    "part": _BLOCK,
    "complete": "PUT .*comp=blocklist",
    "manifest": r"PUT .*/\.out\.recshuf\.json",
    "list": "GET .*comp=list",
    "delete": "DELETE .*",
}


def find_azurite() -> str | None:
    """Return the program azurite-blob; None if it is not installed."""
    return os.environ.get("RECSHUF_AZURITE") or shutil.which("azurite-blob")


def serve_azure(port: int) -> Sequence[str]:
    """Return the command of a server."""
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    return [find_azurite() or "", "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]


class AzureTestBucket(NamedTuple):
    """A container of one test, behind a proxy; see `tests.support.objects.object_server.Bucket`."""

    name: str
    proxy: FaultProxy
    client: Any
    """Client of azure-storage-blob, without the proxy."""
    lists_uploads: bool = False
    refusal: tuple[int, str, str] = (403, "AuthenticationFailed", "access is denied")
    requests: Mapping[str, str] = AZURE_REQUESTS

    @property
    def url(self) -> str:
        return f"az://{self.name}"

    def list_keys(self, prefix: str = "") -> list[str]:
        return [one.name for one in self.client.list_blobs(name_starts_with=prefix)]

    def list_uploads(self) -> list[str]:
        """Return the keys of the uploads that a journal names, and that have blocks which are not committed."""
        return [key for key, _ in self._find_blocks()]

    def _find_blocks(self) -> Iterator[tuple[str, Any]]:
        for name in self.list_keys():
            entry = json.loads(self.read(name).partition(b" ")[2]) if name.endswith(".entry") else {}
            if "upload" in entry:
                parent, _, rest = name.partition(".")
                folder = rest.partition(".recshuf/")[0]
                key = f"{parent}{folder}" + ("" if entry["name"] == folder else f"/{entry['name']}")
                blocks = self._list_blocks(key)
                yield from ((key, one) for one in blocks if one.id.startswith(entry["upload"]))

    def _list_blocks(self, key: str) -> list[Any]:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return list(self.client.get_blob_client(key).get_block_list("uncommitted")[1])
        except ResourceNotFoundError:
            return []

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_blob_client(key).download_blob().readall())

    def put(self, key: str, body: bytes) -> None:
        self.client.get_blob_client(key).upload_blob(body, overwrite=True)

    def delete(self, key: str) -> None:
        self.client.get_blob_client(key).delete_blob()

    def begin_upload(self, key: str) -> None:
        self.client.get_blob_client(key).stage_block("other", b"other")

    def abort_one(self) -> None:
        """Remove the blocks of an open upload, as if their time were over."""
        from azure.storage.blob import BlobBlock

        key, block = next(self._find_blocks())
        if key in self.list_keys():
            pytest.skip("Azurite removes blocks only together with a blob of their key")
        other = block.id[:-1] + "x"
        self.client.get_blob_client(key).stage_block(other, b"other")
        # Blocks that are left out of a list are removed.
        self.client.get_blob_client(key).commit_block_list([BlobBlock(other)])
        self.delete(key)

    def damage_one(self) -> None:
        """Replace a block of an open upload."""
        key, block = next(self._find_blocks())
        self.client.get_blob_client(key).stage_block(block.id, b"other")

    def read_all(self, prefix: str = "") -> dict[str, bytes]:
        return {key: self.read(key) for key in self.list_keys(prefix)}
