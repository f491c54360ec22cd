"""A destination in a bucket: its errors name the URL that was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.objects.destination import ObjectDestination
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url

if TYPE_CHECKING:
    from tests.support.objects.object_server import Bucket


def test_an_error_of_a_single_object_names_it_without_a_slash(bucket: Bucket):
    bucket.proxy.answer("GET .*list-type", 403, "AccessDenied", times=100)
    url = f"{bucket.url}/data/out.txt"
    with pytest.raises(OutputError, match=f"^{url}: access is denied"):
        ObjectDestination(Url.parse(url), StorageOptions())
