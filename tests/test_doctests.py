"""The examples of all docstrings give what they show."""

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import recshuf

OPTIONAL = {"torch", "ray", "PIL", "jinja2"}
"""Libraries that may be missing."""


def load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        assert {error.name or name.rpartition(".")[2]} <= OPTIONAL
        return None


def test_the_examples_of_all_docstrings_hold() -> None:
    package = Path(recshuf.__file__).parent
    files = [path for path in package.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    modules = filter(None, (load(name.removesuffix(".__init__")) for name in names))
    results = {module.__name__: doctest.testmod(module) for module in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 40
