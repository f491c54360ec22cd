"""Pointers: the small files of text that version control leaves in place of large files."""

from __future__ import annotations

from recshuf.errors import InputError

POINTER_BYTES = 64
"""Bytes that `refuse_pointer` needs, if there are so many."""
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"version https://hawser.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get ."),
}


def refuse_pointer(name: str, head: bytes) -> None:
    """Refuse an input that begins like a pointer: what it points to was not fetched."""
    for begin, (what, command) in _POINTERS.items():
        if head.startswith(begin):
            raise InputError(
                name,
                f"is a pointer of {what}, and not the file that it stands for",
                remedy=f"fetch that with {command} in its repository",
            )
