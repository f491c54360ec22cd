"""Containers of Azurite, the emulator of Azure Blob Storage, for tests."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests.support.objects.object_server import FaultProxy

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
