"""Credentials of Google that are renewed: a server of tokens that cannot be reached is no denied access."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from recshuf.errors import OutputError
from recshuf.storage import requests
from recshuf.storage.settings import StorageOptions
from recshuf.storage.writing.bucket import Match
from recshuf.storage.writing.gcs import GcsBucket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.objects.gcs_buckets import GcsTestBucket


class TokenServer(HTTPServer):
    """Gives tokens after a number of connections that it breaks off, or refuses all with an error."""

    breaks = 0
    refusal = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        if self.server.breaks:
            self.server.breaks -= 1
            self.close_connection = True
            return
        content = {"error": "invalid_grant"}
        if not self.server.refusal:
            content = {"access_token": "a token", "expires_in": "3600"}
        self.send_response(self.server.refusal or 200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer(("127.0.0.1", 0), TokenHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def open_bucket(gcs_bucket: GcsTestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that opens the bucket with an account whose tokens come from a URL."""
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.delenv("GOOGLE_SKIP_SIGNATURE")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def open_with(token_url: str) -> GcsBucket:
        account = {
            "type": "service_account",
            "client_email": "me@project.iam.gserviceaccount.com",
            "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "token_uri": token_url,
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        options = StorageOptions(None, {"service_account": str(tmp_path / "account.json")})
        return GcsBucket(gcs_bucket.name, options, ".scratch/")

    return open_with


@pytest.mark.parametrize("breaks", [0, requests.ATTEMPTS - 1])
def test_a_connection_that_breaks_is_tried_again(open_bucket, tokens: TokenServer, breaks: int):
    tokens.breaks = breaks
    store = open_bucket(tokens.url)
    store.put("a", b"content", Match())
    found = store.read("a")
    assert found is not None
    assert (found[0], tokens.breaks) == (b"content", 0)


def test_a_server_of_tokens_that_cannot_be_reached_is_named(open_bucket):
    store = open_bucket("http://127.0.0.1:9/token")
    with pytest.raises(OutputError, match=r"^gs://.*/a: the store cannot be reached: .*port=9.*; check .*$"):
        store.read("a")


def test_refused_credentials_are_denied_access(open_bucket, tokens: TokenServer):
    tokens.refusal = 400
    with pytest.raises(OutputError, match=r"^gs://.*/a: access is denied \(401\); check the credentials"):
        open_bucket(tokens.url).read("a")
