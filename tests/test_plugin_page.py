"""docs/plugin.md holds a whole format, which works as the package that it is."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recshuf
from tests.support.other_packages import forget_formats, install, use

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugin.md"
MOST_LINES = 150


def extract_files() -> dict[str, str]:
    """Return the files of the page, by name."""
    parts = re.findall(r"^## (\S+\.\w+)$.*?^```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(parts)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, content in extract_files().items():
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a file like those of MNIST, which have no suffix."""
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + bytes([0, 0, 1, 44, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(240)) * 5)
    return path


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process see the package."""
    install(package, "recshuf-idx", idx="recshuf_idx:FORMAT")
    use(package, monkeypatch)
    yield
    monkeypatch.undo()
    forget_formats()
    sys.modules.pop("recshuf_idx", None)


def test_the_page_is_a_whole_format_of_few_lines(installed: None, images: Path, tmp_path: Path):
    assert [*extract_files()] == ["pyproject.toml", "recshuf_idx.py", "test_idx.py"]
    assert extract_files()["recshuf_idx.py"].count("\n") <= MOST_LINES
    recshuf.shuffle(images, tmp_path / "out.idx", seed=1, verify=True)
    assert sorted((tmp_path / "out.idx").read_bytes()) == sorted(images.read_bytes())
    for nested, kind in ((True, "fixed_size_list<element: fixed_size_list"), (False, "fixed_size_list<")):
        recshuf.shuffle(images, f"{tmp_path}/tables/", to="parquet", seed=1, nested=nested, overwrite=True)
        manifest = json.loads((tmp_path / ".tables.recshuf.json").read_text())
        assert kind.replace("element", "item") in manifest["schema"][0]["type"].replace("element", "item")
        assert manifest["packages"] == {"recshuf-idx": "1.0"}


def run(*command: object, folder: Path, path: Path) -> str:
    """Run a module of Python in a folder, with the packages of a path before others."""
    search = os.pathsep.join([str(path), str(PAGE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_package_is_installed_and_passes_its_own_tests(package: Path, images: Path, tmp_path: Path):
    pytest.importorskip("hatchling", reason="hatchling is needed to build the package of the page")
    site, out = tmp_path / "site", tmp_path / "out.idx"
    options = ("-q", "--no-deps", "--no-build-isolation", "--target", site)
    run("pip", "install", *options, ".", folder=package, path=site)
    (package / "recshuf_idx.py").unlink()
    assert "passed" in run("pytest", "-q", "-p", "no:cacheprovider", "test_idx.py", folder=package, path=site)
    listed = json.loads(run("recshuf", "formats", "--json", folder=package, path=site))
    (found,) = [one for one in listed if one["package"]]
    assert (found["name"], found["options"], found["package"]["version"]) == ("idx", ["--nested"], "1.0")
    run("recshuf", images, "-o", out, "--seed", 1, "--verify", folder=tmp_path, path=site)
    assert out.stat().st_size == images.stat().st_size
