"""Sessions and clients of boto3, made of the storage options of a run."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.storage import ENDPOINT_REMEDY, check_text, is_endpoint, parse_flag, unknown_option
from recshuf.storage.requests import HURRIED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_CONNECTIONS = 16
_SESSION_OPTIONS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "region": "region_name",
    "default_region": "region_name",
    "profile": "profile_name",
}
"""Argument of a boto3 session for each storage option, without the prefix ``aws_``."""
SKIP_SIGNATURE = "skip_signature"
"""Storage option of inputs that boto3 does not know."""
CUT_REPLY = "CutReply"
"""Code of the error for replies that end early."""
NO_CREDENTIALS = "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def make_session(options: Mapping[str, str], others: Sequence[str] = ()) -> Any:
    """Return a session of boto3 with storage options; the caller takes options of `others` itself."""
    try:
        import boto3
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise UsageError("s3:// needs boto3; install recshuf[cloud]") from error
    # Other libraries for object stores read this variable, and boto3 does not.
    session: dict[str, str | None] = {"region_name": os.environ.get("AWS_REGION")}
    for name, value in options.items():
        short = name.lower().removeprefix("aws_")
        known = _SESSION_OPTIONS.get(short)
        if short == SKIP_SIGNATURE and not parse_flag(name, value):
            continue
        if short == SKIP_SIGNATURE:
            raise UsageError(
                f"--storage-option {name}: writing to s3:// needs credentials; give it for the bucket of the inputs alone, "
                f"s3://BUCKET:{name}=true"
            )
        if not value:
            raise UsageError(f"--storage-option {name}: is empty; give a value, or leave it out")
        if known is None:
            raise unknown_option(name, "s3:// here", (*_SESSION_OPTIONS, *others))
        session[known] = value
    inner = botocore.session.get_session()
    inner.register_component("data_loader", _share_loader())
    try:
        return boto3.Session(botocore_session=inner, **session)
    except BotoCoreError as error:
        raise _refuse_session(error) from error


def check_credentials(session: Any) -> None:
    """Get the credentials of a session, which may take requests. Without them, libraries fail in ways of their own."""
    from botocore.exceptions import BotoCoreError, ClientError, PartialCredentialsError

    try:
        credentials = session.get_credentials()
        parts = None if credentials is None else credentials.get_frozen_credentials()
    except PartialCredentialsError as error:
        raise _refuse_session(error) from error
    except (BotoCoreError, ClientError, OSError, ValueError) as error:
        raise UsageError(f"s3://: {explain_credentials(error)}") from error
    if parts is None:
        raise UsageError(NO_CREDENTIALS)
    if not (parts.access_key and parts.secret_key):
        raise UsageError(
            "s3://: the credentials are incomplete; give access_key_id and secret_access_key together"
        )
    for name, value in parts._asdict().items():
        check_text(f"s3://: {name} of the credentials ({credentials.method})", str(value or ""))


def explain_credentials(error: Exception) -> str:
    """Say why there are no credentials, and what to do."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    return (
        f"there are no valid credentials: {' '.join(text.split()).rstrip(' .:')}; renew them, and run again"
    )


def _refuse_session(error: Exception) -> UsageError:
    """Return the error for settings, options and variables that boto3 does not take."""
    from botocore.exceptions import PartialCredentialsError

    if isinstance(error, PartialCredentialsError):
        return UsageError(
            f"s3://: the credentials are incomplete: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together"
        )
    return UsageError(f"s3://: {str(error).rstrip('.')}; check --storage-option and the variables AWS_*")


@cache
def _share_loader() -> Any:
    """Return what loads the descriptions of services: 0.1 s of CPU if each session has its own."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def make_client(session: Any, endpoint_url: str | None, *, is_hurried: bool = False) -> Any:
    """Return a client of a session, which makes each request once. If it is hurried, one that nobody answers fails soon."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    # `Requests` tries again.
    config = Config(retries={"mode": "standard", "total_max_attempts": 1}, max_pool_connections=_CONNECTIONS)
    if is_hurried:
        connect, reply = HURRIED_SECONDS
        config = config.merge(Config(connect_timeout=connect, read_timeout=reply))
    try:
        client = session.client("s3", endpoint_url=endpoint_url, config=config)
    except BotoCoreError as error:
        raise _refuse_session(error) from error
    except ValueError as error:
        raise UsageError(f"AWS_ENDPOINT_URL: {error}; {ENDPOINT_REMEDY}") from error
    if not is_endpoint(client.meta.endpoint_url):
        raise UsageError(
            f"AWS_ENDPOINT_URL: {client.meta.endpoint_url!r} is no URL of a server; {ENDPOINT_REMEDY}"
        )
    # boto3 asks for the region of a bucket where an answer does not say it, and must not ask about that answer again.
    client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirect)
    client.meta.events.register("before-parse.s3", _refuse_cut_reply)
    if client.meta.endpoint_url.startswith("https:"):
        # TLS and the CRC-32 suffice, as for the checksums of botocore; it does not know ours, and would add SHA-256.
        client.meta.config.s3 = {"payload_signing_enabled": False} | (client.meta.config.s3 or {})
    return client


def _follow_no_redirect(params: dict[str, Any], **_: object) -> None:
    """Let boto3 take a request for one that was redirected before."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _refuse_cut_reply(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """Take a reply that is shorter than it says, which urllib3 does not notice, for an error."""
    headers, body = response_dict["headers"], response_dict["body"]
    is_comparable = operation_model.http["method"] != "HEAD" and "Content-Encoding" not in headers
    if isinstance(body, bytes) and is_comparable and len(body) < int(headers.get("Content-Length", 0)):
        error = f"<Error><Code>{CUT_REPLY}</Code></Error>"
        response_dict.update(status_code=500, body=error.encode())
