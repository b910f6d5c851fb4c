"""Run by the gate from a folder that is not the checkout: what README's command installs works alone."""

from pathlib import Path

import numpy as np

import clrope
from clrope.kernels.source import kernel_folder

package = Path(clrope.__file__).resolve().parent
assert "site-packages" in package.parts, package
assert kernel_folder() == package / "kernels" / "cl", kernel_folder()
assert (package / "py.typed").is_file()
x = np.random.default_rng().uniform(-1, 1, (2, 7, 3, 64)).astype(np.float32)
y = clrope.rope(x, 5, mode="normal", device="pocl")
comparison = clrope.compare(y, clrope.reference.rope(x, 5, clrope.RopeConfig("normal")))
assert comparison.nmse < 1e-12, comparison
print(f"wheel in {package}: {comparison}")
