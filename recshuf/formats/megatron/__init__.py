"""Data sets of Megatron: tokens in a `.bin`, and an `.idx` that says where sequences and documents begin. A record is a document."""

from __future__ import annotations

from typing import Any

from recshuf.errors import UsageError
from recshuf.formats.files import LazyFormat
from recshuf.interfaces import FormatOption, Traits

MAGIC = b"MMIDIDX\0\0"
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
"""Types of tokens by their number in the index. Other writers exchange 6 and 7."""


def _parse_type(text: str) -> str:
    if text not in CODES.values():
        raise ValueError(f"it is none of {', '.join(CODES.values())}")
    return text


TOKEN_TYPE = FormatOption(
    "token_type",
    "Megatron: type of the tokens that are written from a column of lists, such as uint16 or int32. Default: that of the column.",
    "TYPE", _parse_type, side="output", group="Output",
)  # fmt: skip


class MegatronFormat(LazyFormat):
    """Pairs of `.bin` and `.idx`."""

    source = "recshuf.formats.megatron.pairs:MegatronSource"
    target = "recshuf.formats.megatron.pairs:open_target"
    decoder = "recshuf.formats.megatron.pairs:MegatronDecoder"
    layouts = ("recshuf.formats.megatron.pairs:MegatronLayout",)
    traits = Traits(
        "megatron",
        (".bin",),
        companion_suffixes=(".idx",),
        options=(TOKEN_TYPE,),
        libraries=("numpy",),
        has_columns=False,
        adds_columns=False,
        content_rank=3,
    )

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def check_appended(self, kept: Any, source: Any) -> None:
        first, other = kept.layout, source.layout
        remedy = "begin a new store for them"
        if first.code != other.code:
            raise UsageError(
                f"tokens are {CODES[other.code]}, and {CODES[first.code]} in the store; {remedy}"
            )
        if first.is_plain and not other.is_plain:
            raise UsageError(f"documents have several sequences, and one each in the store; {remedy}")


FORMAT = MegatronFormat()
