"""The contracts by name: each file here with a `CONTRACT` is one."""

from __future__ import annotations

from . import cos_sin_tables, ggml_opencl, own_words

BY_NAME = {module.CONTRACT.name: module.CONTRACT for module in (own_words, cos_sin_tables, ggml_opencl)}
