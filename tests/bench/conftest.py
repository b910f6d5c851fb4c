"""The benchmark's own tools are outside the package: `from tools.acceptance import ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
