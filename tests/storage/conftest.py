"""What tests of stores share."""

import pytest

from tests.support.objects.object_outputs import STORES, AnyBucket
from tests.support.objects.object_server import CREDENTIALS


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set credentials of S3, and no server."""
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=STORES)
def any_bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found
