"""The sdist and the wheel made from it: what they hold, and that the wheel works away from the sources."""

import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import recshuf

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parent.parent
USE = """
import sys
from pathlib import Path
import recshuf
assert Path(recshuf.__file__).is_relative_to(sys.argv[1]), recshuf.__file__
Path("in.txt").write_text("".join(f"{number}\\n" for number in range(1000)))
for output in ("out.txt", "out.parquet", "out.h5", "out.jsonl"):
    assert recshuf.shuffle("in.txt", output, seed=0).records_written == 1000
"""


def run(*command: str | Path, cwd: Path) -> None:
    given = [sys.executable, *map(str, command)]
    child = subprocess.run(given, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (PROJECT / "pyproject.toml").is_file():
        pytest.skip("the tests do not lie in a source tree")
    folder = tmp_path_factory.mktemp("sdist")
    build = pytest.importorskip("build", reason="the package build is needed to build the sdist")
    assert build
    run("-m", "build", "--sdist", *isolation(), "--outdir", folder, PROJECT, cwd=folder)
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the sdist alone."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    run("-m", "build", "--wheel", *isolation(), "--outdir", folder / "dist", source, cwd=folder)
    (path,) = (folder / "dist").glob("*.whl")
    return path


def isolation() -> list[str]:
    """Build with the tools that are here, where they are; nothing is downloaded then."""
    try:
        importlib.metadata.version("hatchling")
    except importlib.metadata.PackageNotFoundError:
        return []
    return ["--no-isolation"]


def list_sources() -> set[str]:
    return {str(path.relative_to(PROJECT)) for path in (PROJECT / "recshuf").rglob("*.py")}


def test_the_sdist_holds_the_sources_and_no_link(sdist: Path):
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive if "/" in member.name}
    assert list_sources() <= set(members)
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "recshuf/py.typed"} <= set(members)
    assert "tests/conftest.py" in members
    assert "benchmarks/data.py" in members
    assert not [name for name in members if name.split("/")[0] == "formats"]
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert not [name for name in members if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_holds_the_package_alone_and_names_version_and_command(wheel: Path):
    info = f"recshuf-{recshuf.version.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert list_sources() <= names
        assert "recshuf/py.typed" in names
        assert any(name.endswith("LICENSE") for name in names)
        assert {name.split("/")[0] for name in names} == {"recshuf", info}
        metadata = archive.read(f"{info}/METADATA").decode()
        assert f"Version: {recshuf.version.__version__}" in metadata
        assert "Requires-Python: >=3.11" in metadata
        assert "License-Expression: Apache-2.0" in metadata
        assert "recshuf = recshuf.__main__:run" in archive.read(f"{info}/entry_points.txt").decode()


def test_the_wheel_works_away_from_the_sources(wheel: Path, tmp_path: Path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "work").mkdir()
    # The folder comes before an editable install's own path; -P keeps the current folder out.
    program = f"import sys; sys.path.insert(0, sys.argv[1])\n{USE}"
    run("-P", "-c", program, site, cwd=tmp_path / "work")
