"""Texts of any length take time by their length: none for which a regular expression takes its square."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Each text took minutes to days; now about a second.
HANGING_S = 120

KERNEL = (
    "// lab: requires neox\n__kernel void k(__global float *y, __global const float *x, __global int *positions) {}\n"
)
#: What stands behind a kernel, up to the longest kernel file.
BEHIND_KERNEL = {
    "blank lines": "'\\n' * MOST + 'x'",
    "blanks in a directive": "'// lab: a' + ' ' * MOST + 'b'",
    "blanks before what is no word": "'#define A' + ' ' * MOST + '(1)'",
    "a comment before what is no word": "'#define A /*' + '-' * MOST + '*/ (1)'",
    "directives": "''.join(f'// lab: a{n} = x\\n' for n in range(MOST // 21))",
    "requirements": "'// lab: requires neox\\n' * (MOST // 22)",
    "kernels": "''.join(f'kernel a{n}()' for n in range(MOST // 17))",
}
LOAD_KERNEL = """\
import pathlib, sys
from clrope import BuildError, ConfigError
from clrope.kernels.build import includes_files
from clrope.lab.included import included_files
from clrope.lab.lab_kernel import load_file
MOST = (4 << 20) - 300
path = pathlib.Path(sys.argv[1], "k.cl")
path.write_text({kernel!r} + {text})
try:
    file = load_file(path, kernel="k")
    file.check()
    assert not included_files(path, file.source)
    assert not includes_files(file.source)
except ConfigError as error:
    assert "characters, at most" in str(error)
except BuildError as error:
    assert error.log
"""
#: Other readers, and longest texts for them.
READERS = {
    "case": "from clrope.suite.case import _TEXT\nassert not _TEXT.fullmatch('ROPE(' + ')#' * 500_000 + '\\n')",
    "case's fields": "from clrope.suite.case import _COMMA\nassert len(_COMMA.split(',' * 500_000)) == 500_001",
    "counts": "from clrope.lab.counters import read_counts as f\n"
    "line = \"Instructions executed for kernel 'k':\\n1 - \"\n"
    "f(line + 'a' + ' ' * 1_000_000 + 'b', 'k')\nf(line + 'call _Z' + '1' * 1_000_000 + 'b', 'k')",
    "version": "from clrope.benchmark import clpeak\n"
    "class Done:\n    stdout = '1' * 1_000_000\n"
    "clpeak.shutil.which = lambda name: name\nclpeak.subprocess.run = lambda *_, **__: Done\n"
    "assert clpeak.clpeak_version() is None",
    "loader": "import pathlib, sys\nfrom clrope.device import icd\npath = pathlib.Path(sys.argv[1], 'loader')\n"
    "path.write_bytes(b'/' * 1_000_000 + b'\\0/a/OpenCL/vendors\\0')\n"
    "assert icd.system_directories(str(path)) == ('/a/OpenCL/vendors',)",
}  # fmt: skip
SCRIPTS = READERS | {name: LOAD_KERNEL.format(kernel=KERNEL, text=text) for name, text in BEHIND_KERNEL.items()}


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_long_text_is_read(name: str, tmp_path: os.PathLike[str]) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPTS[name], os.fspath(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING_S, env=env, check=False)
    assert done.returncode == 0, done.stderr
