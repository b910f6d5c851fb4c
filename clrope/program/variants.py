"""The spellings of the rotation kernel: one table of what exists, and the safe choice for a device without tuning.

A variant changes how the work is written down, never a bit of the result. A new spelling is one more field value here
and its lines in `kernels/`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Pairing = Literal["normal", "neox"]

#: Compiler options per storage type.
STORAGE_OPTIONS = {
    "f16": "-DSTORAGE_F16",
    "bf16": "-DSTORAGE_BF16",
    "f32": "-DSTORAGE_F32",
    "f64": "-DSTORAGE_F64",
}


@dataclass(frozen=True)
class Variant:
    """One spelling.

    kernel:         'rows' (whole heads by vectors; the last axis must be dense) or 'strided' (any strides, by element).
    width:          pairs rotated at once ('rows'); 'normal' pairs load twice as many elements.
    access:         'builtin' (vload, vload_half, convert_), 'clang' (pointers to vectors and clang's conversions, for
                    drivers that compile the builtins to calls), or 'integer' (f16 only: builtin loads, conversion by
                    integer arithmetic in registers).
    prepared:       the number of pairs is compiled in, and each work-item brings the token's cos and sin into the order
                    of its vectors once for all of its heads ('rows').
    store:          'plain' or 'nontemporal' (past the cache; needs outputs aligned to the vector).
    """

    kernel: Literal["rows", "strided"] = "rows"
    width: int = 4
    access: Literal["builtin", "clang", "integer"] = "builtin"
    store: Literal["plain", "nontemporal"] = "plain"
    prepared: bool = False

    def source(self, pairing: Pairing) -> tuple[str, str]:
        """Return (file under `kernels/`, kernel name)."""
        if self.kernel == "strided":
            return "rotate_strided.cl", "rope_rotate_strided"
        return f"rotate_{pairing}.cl", f"rope_rotate_{pairing}"

    def options(self, dtype: str, pairs: int, full_tables: bool = False) -> tuple[str, ...]:
        """Return the compiler's options for a storage type."""
        out = [STORAGE_OPTIONS[dtype]]
        if self.kernel == "rows":
            out.append(f"-DW={self.width}")
            if self.prepared and not full_tables:
                out.append(f"-DPAIRS={pairs}")
            if self.access == "clang":
                out.append("-DCLANG_VECTORS")
            if self.store == "nontemporal":
                out.append("-DNONTEMPORAL")
        if self.access == "integer" and dtype == "f16":
            out.append("-DHALF_INTEGER")
        if full_tables:
            out.append("-DFULL_TABLES")
        return tuple(out)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)


def default_variant(kind: str, dtype: str, pairing: Pairing) -> Variant:
    """Return the spelling for a device kind ('cpu', 'gpu', 'accelerator', ...) that nothing is known of.

    CPUs: vectors of 32 bytes of the computing type. Wider ones change the calling convention on a CPU without AVX-512
    (`docs/drivers.md`), and that is where drivers were seen to fail. Others: element by element, neighbours together.
    """
    if kind != "cpu":
        return Variant(kernel="strided")
    elements = 4 if dtype == "f64" else 8
    return Variant(width=elements // 2 if pairing == "normal" else elements)
