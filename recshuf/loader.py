"""`PileLoader` as trainers get it: from a store, or from files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

from recshuf.train.loader import PileLoader as StoreLoader
from recshuf.train.selection import open_piles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from recshuf.job.options import Paths
    from recshuf.job.report import Progress
    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.kept.stored import StoredPiles


class PileLoader(StoreLoader):
    """The loader of a store, which files can be made into."""

    __doc__ = StoreLoader.__doc__

    @classmethod
    def from_files(
        cls,
        inputs: Paths,
        batch_size: int,
        *,
        cache: str | os.PathLike[str],
        local_cache: str | os.PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        **arguments: Any,
    ) -> Self:
        """Return a loader of the records of files, whose store is made on first use.

        The store is taken again as long as the names, sizes, times and inodes of the inputs, the options and the version
        of recshuf are the same. One of several processes makes it, and the others wait for it.

        Parameters
        ----------
        inputs
            Files, directories (searched at any depth) and globs; no pipes, and no URL whose server sends neither ETag nor
            Last-Modified, since a change could not be noticed. Names count as they are found: ``data`` and ``data/*`` name
            the same files, ``./data`` others.
        cache
            Folder of the stores, or URL of a prefix of s3://, gs:// or az://. Nothing in it is deleted: ``recshuf store drop``
            deletes a store.
        local_cache
            What `cache` is to `PileLoader`: a folder for regions of the store.
        progress
            As for `recshuf.shuffle`; names other stores of the same inputs.
        **arguments
            `recshuf.ScatterOptions`, and arguments of `PileLoader`. `columns` is that of the loader; the store holds all.
            `seed` is that of the store, so that epoch 0 is what `recshuf.shuffle` writes with it; another seed makes
            another store. Default: drawn at random when the store is made.

        Raises
        ------
        TypeError
            When an argument is unknown.
        RecshufError
            As `recshuf.scatter` does.
        """
        store, own = cache_files(inputs, cache, local_cache, progress, arguments)
        return cls(store, batch_size, **own)


def cache_files(
    inputs: Paths,
    cache: str | os.PathLike[str],
    local_cache: str | os.PathLike[str] | None,
    progress: Progress | bool | None,
    arguments: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the store of some files, and those of the arguments that are not of it but of its loader."""
    # A trainer that has its store should not wait for what makes one.
    from recshuf.api import speak_python
    from recshuf.api.runs import cache_store
    from recshuf.job.options import ScatterOptions, find_own

    of_store = ScatterOptions.__annotations__.keys() - {"columns"}
    others = arguments.keys() - of_store - signature(StoreLoader).parameters.keys()
    of_store |= find_own(others, ScatterOptions).keys()
    options = {name: value for name, value in arguments.items() if name in of_store}
    own = {name: value for name, value in arguments.items() if name not in of_store}
    make = partial(speak_python(cache_store), inputs, cache, progress=progress, **options)
    return _CachedStore(make), own | {"cache": local_cache}


@dataclass(frozen=True)
class _CachedStore:
    """A store that is made, or found in the cache, when it is opened: after the loader has checked its arguments."""

    make: Callable[[], StorePlace]

    def piles(self) -> StoredPiles:
        return open_piles(self.make())[0]
