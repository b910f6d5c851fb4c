"""Files: Hugging Face and GGUF configurations, presets, and arrays in .npy, .npz and .safetensors. No devices."""

from .files import format_of, read_arrays, read_metadata, write_arrays
from .gguf import config_from_gguf
from .hf import config_from_hf
from .presets import preset

__all__ = [
    "config_from_gguf",
    "config_from_hf",
    "format_of",
    "preset",
    "read_arrays",
    "read_metadata",
    "write_arrays",
]
