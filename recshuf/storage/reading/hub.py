"""The Hugging Face Hub, read by its own library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from recshuf.errors import ForbiddenInputError, InputError, MissingInputError, UsageError
from recshuf.storage.credentials import check_given
from recshuf.storage.reading.fsspec_stores import NO_SUCH_RANGE, FsspecStore
from recshuf.storage.requests import ChangedObject, Failure
from recshuf.storage.settings import ENDPOINT, ENDPOINT_REMEDY, is_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url

T = TypeVar("T")

_OPTIONS = ("token",)
_RETRIED_STATUS = (None, 408, 429, 500, 502, 503, 504)
"""Of answers after which the library tries again; None for none."""


class HubStore(FsspecStore):
    """The repositories of a kind."""

    # The hub is to be asked anew, also for identifiers, in place of its listings in memory.
    _find_options: ClassVar[Mapping[str, Any]] = {"refresh": True, "expand_info": True}
    _list_options: ClassVar[Mapping[str, Any]] = {"refresh": True}

    def _ask(self, name: str, request: Callable[[], T]) -> T:
        """Make a request that the library tries again itself; only what it asks before, once, is tried again here."""
        self._files.resolve_path(name)
        try:
            return request()
        except (FileNotFoundError, ValueError):
            raise
        except Exception as error:
            failure = Failure.of(error)
            if failure.may_pass and failure.status in _RETRIED_STATUS:
                raise failure.explain(name, "several attempts") from error
            raise

    def _translate(self, name: str, error: BaseException) -> BaseException:
        refusal = next((found for one in _list_causes(error) if (found := _explain(name, one))), None)
        if refusal is not None:
            return refusal
        if isinstance(error, Exception) and Failure.of(error).status == NO_SUCH_RANGE:
            return ChangedObject()
        return super()._translate(name, error)


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _explain(name: str, error: BaseException) -> InputError | None:
    """Return the error for an answer about a repository; None if it is about something else."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ForbiddenInputError(
            name,
            "the repository is gated",
            remedy="ask for access on its page, and set HF_TOKEN to a token of who has it",
        )
    if isinstance(error, RepositoryNotFoundError):
        return MissingInputError(
            name,
            "there is no such repository, or no access to it",
            remedy="check the name, and the token in HF_TOKEN or of the login",
        )
    if isinstance(error, RevisionNotFoundError):
        return MissingInputError(
            name, "the repository has no such revision", remedy="check the name after the @"
        )
    return None


def open_hub(url: Url, options: StorageOptions) -> HubStore:
    """Return the store of a URL.

    Raises
    ------
    UsageError
        When the library is not installed or may not use the network, or it takes no such option or endpoint.
    """
    check_given("hf", options.options)
    for name in options.options:
        if name not in _OPTIONS:
            raise UsageError(
                f"--storage-option {name}: is not taken for hf://; known are {', '.join((*_OPTIONS, ENDPOINT))}"
            )
    try:
        import fsspec
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"{url}: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing is read; unset it"
            )
        endpoint = options.endpoint_url or constants.ENDPOINT
        if not is_endpoint(endpoint):
            raise UsageError(f"HF_ENDPOINT: {endpoint!r} is no URL of a server; {ENDPOINT_REMEDY}")
        # A shared instance keeps the answer that a repository is gated or missing.
        files = fsspec.filesystem("hf", endpoint=endpoint, skip_instance_cache=True, **options.options)
    except ImportError as error:
        raise UsageError(f"{url}: cannot be read ({error}); install huggingface_hub") from error
    return HubStore(files, f"{url.scheme}://{url.bucket}/")
