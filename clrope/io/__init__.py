"""Files: Hugging Face and GGUF configurations, presets, and arrays in .npy, .npz and .safetensors. No devices."""

from .files import format_of, read_arrays, read_metadata, write_arrays

__all__ = ["format_of", "read_arrays", "read_metadata", "write_arrays"]
