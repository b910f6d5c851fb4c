"""Arrays of other libraries through DLPack: NumPy views of their memory, also of types that NumPy refuses.

https://dmlc.github.io/dlpack/latest/c_api.html has the structures, and the codes of devices and types.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ShapeError
from .layout import DTYPES

_CPU = 1
_UNSIGNED = 1
#: Names of storage types by DLPack's codes for those that NumPy refuses.
_OWN_TYPES = {4: "bf16", 10: "f8e4m3", 12: "f8e5m2"}
#: Bytes before the type in what a capsule of either name points to: `DLManagedTensor`, `DLManagedTensorVersioned`.
_TYPE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Exporter:
    """An array with its type replaced by unsigned integers of the same size where NumPy would refuse it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.type: str | None = None

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.array.__dlpack__(**options)
        for name, offset in _TYPE_AT.items():
            if _is_valid(capsule, name):
                found = _Type.from_address(_pointer(capsule, name) + offset)
                self.type = _OWN_TYPES.get(found.code)
                if self.type is not None and found.bits == 8 * DTYPES[self.type].itemsize:
                    found.code = _UNSIGNED
        return capsule


def from_dlpack(array: Any, argument: str) -> npt.NDArray[Any]:
    """Return a NumPy view of an array with `__dlpack__` and `__dlpack_device__`: no copy, and read-only if it is.

    Exporters before DLPack 1.0 cannot say whether they may be written, so NumPy makes their views read-only (and all
    before NumPy 2.1). Raises `ShapeError` for other devices than the CPU, and what the exporter and NumPy raise.
    """
    device, number = array.__dlpack_device__()
    if int(device) != _CPU:
        raise ShapeError(
            f"{argument}: got {type(array).__name__} on DLPack device {int(device)}:{int(number)}, only memory of the "
            "CPU (1:0) is taken; copy it to the host"
        )
    exporter = _Exporter(array)
    view: npt.NDArray[Any] = np.from_dlpack(exporter)
    return view if exporter.type is None else view.view(DTYPES[exporter.type])
