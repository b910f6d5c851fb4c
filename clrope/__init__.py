"""Rotary position embedding (RoPE) as OpenCL C kernels: right, fast, and the same bits on any OpenCL device."""

__version__ = "0.1.0"
