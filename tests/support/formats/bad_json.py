"""JSON lines that are damaged: by hand, and drawn."""

from __future__ import annotations

from hypothesis import strategies as st

BAD = [
    b"",
    b"[]",
    b"\xff",
    b'{"t":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"a":1',
    b"{}{}",
    b'{"a":1}}',
    b"{'a':1}",
    b'{"a":01}',
    b'{"a":1,"a":2}',
    b'{"a":1,"zz":1e999}',
    b'{"f":NaN}',
    b'{"f":NaN,"g":-Infinity}',
    b'{"b":1,"t":"\\ud800"}',
    b'{"n":[1,"x"]}',
    b'{"n":[1,"x"],}',
    b'{"u":18446744073709551617}',
    b'{"u":[0.5,9007199254740993]}',
    b'{"x":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"c":"\x01"}',
]
SEEDS = [
    b'{"a":1}',
    b'{"a":[1,{"b":null}],"c":"x\\u00e9"}',
    b'{"a":-1.5e3,"b":true}',
    b"{}",
    b'{"a":{"b":[[],[2]]}}',
]
BITS = [b" ", b"\r", b"\xef\xbb\xbf", *b"{ } [ ] {} }{ , : . 1 0 - e9 e999 null NaN /**/ \0 \xff".split()]
BITS += b'" "a":2 \\ \\ud800'.split()


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
        line = line[:at] + draw(st.sampled_from([b"", *BITS])) + line[at + gone :]
    return line
