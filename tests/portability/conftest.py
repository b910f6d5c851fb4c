"""What the tests of reports share: results made up for the tests of the benchmark, and files."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))


@pytest.fixture
def put(tmp_path):
    """Write data as a JSON file; returns its path as text."""

    def write(name, data):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return str(path)

    return write
