"""The spellings of the rotation kernel: what exists, where each one fits, and the safe one for an unknown device.

A variant changes how the work is written down, never a bit of the result. A new spelling is one more field value here,
its lines in `kernels/`, and a line in `candidates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import ConfigError
from ..layout import DTYPES, TensorView

if TYPE_CHECKING:
    from ..schedule.geometry import Geometry

Pairing = Literal["normal", "neox"]
KernelName = Literal["rows", "tiled", "strided"]
Access = Literal["builtin", "clang", "integer"]
Store = Literal["plain", "nontemporal", "staged"]
NanKind = Literal["any", "plain"]
Angles = Literal["cached", "fused"]
PrefetchKind = Literal["levels", "nta"]
Alignment = int | Callable[[], int]

#: Compiler options per storage type.
STORAGE_OPTIONS = {
    "f16": "-DSTORAGE_F16",
    "bf16": "-DSTORAGE_BF16",
    "f32": "-DSTORAGE_F32",
    "f64": "-DSTORAGE_F64",
}
WIDTHS = (1, 2, 4, 8, 16)
#: Pairs up to which cos and sin of a token are kept in a work-item's private memory.
MOST_PREPARED = 1024
#: Bytes of prefetching that are tried: the best on AVX-512 from memory (docs/performance.md); elsewhere 2 to 8 KiB were
#: equally good.
PREFETCH = 4096
#: The same of 'nta': 8 to 12 KiB were best out of place on AMD's Zen 5, in place 4 and 8 alike.
PREFETCH_NTA = 8192
#: Bytes of the shortest vectors for which a processor has stores past the cache.
LEAST_STREAMED = 16
#: Bytes of private memory in which 'staged' gathers heads, if one head is not longer: what was best of 0.5 to 8 KiB; so
#: short that reading and storing take turns.
STAGED_BYTES = 1 << 10
#: Bytes of the longest head that it gathers.
MOST_STAGED = 8 << 10
#: Bytes of local memory that the two tiles of 'tiled' share, and a row of cos and sin beside them: half of what every
#: device has at least (CL_DEVICE_LOCAL_MEM_SIZE is 32 KiB or more on a full profile).
TILES_BYTES = 16 << 10
#: What every driver aligns its own buffers to (CL_DEVICE_MEM_BASE_ADDR_ALIGN is at least 128 bytes on a full profile).
BUFFER_ALIGNMENT = 64


@dataclass(frozen=True)
class Placement:
    """Where a launch's tensors lie, as far as it decides which spellings fit.

    x, y: views whose offsets count from the start of their buffers. x_alignment, y_alignment: bytes that the start of
    each buffer is known to be aligned to, or a function that finds out (it is asked only if the answer matters).
    full_tables: the tables hold cos and sin for both elements of each pair. phases: cos and sin are those of a
    configuration's exact angles, which a kernel can make itself. sections: a token's pairs have positions of several
    axes.
    """

    x: TensorView
    y: TensorView
    geometry: Geometry
    in_place: bool = False
    x_alignment: Alignment = BUFFER_ALIGNMENT
    y_alignment: Alignment = BUFFER_ALIGNMENT
    full_tables: bool = False
    phases: bool = False
    sections: bool = False

    def aligned_to(self, view: TensorView, alignment: Alignment) -> int:
        """Return the bytes to which every place at which a run of vectors begins in the view is aligned."""
        g = self.geometry
        steps = [step for step, length in zip(view.strides[:3], view.shape[:3], strict=True) if length > 1]
        places = [view.offset, *steps, g.window]
        if g.pairing == "neox":
            places.append(g.pairs)
        if g.rest and not self.in_place:
            places.append(2 * g.pairs)
        start = alignment if isinstance(alignment, int) else alignment()
        return gcd(start, *(place * view.itemsize for place in places))


@dataclass(frozen=True)
class Variant:
    """One spelling.

    kernel:         'rows' (whole heads by vectors; the last axis must be dense), 'tiled' (the same through local
                    memory, with asynchronous copies in and out) or 'strided' (any strides, by element).
    width:          elements of a vector (not 'strided'), 1, 2, 4, 8 or 16; without `prepared`, 'normal' pairs load
                    twice as many, and 16 is none for them.
    access:         'builtin' (vload, vload_half, convert_), 'clang' (pointers to vectors and clang's conversions, for
                    drivers that compile the builtins to calls), or 'integer' (f16 only: builtin loads, conversion by
                    integer arithmetic in registers).
    store:          'plain', 'nontemporal' (past the cache; needs outputs aligned to the vector) or 'staged' ('rows':
                    heads gather in private memory, whole lines of them go past the cache; they must lie behind each
                    other).
    prepared:       the number of pairs is compiled in, and each work-item brings the token's cos and sin into the order
                    of its vectors once for all of its heads ('rows').
    heads_per_item: heads of one token that a work-item ('tiled': a work-group) rotates, at most; 0: by the number of
                    tokens.
    prefetch:       bytes ahead of a head that are brought into the cache while it is rotated, 0 for none; with
                    `prepared` and compilers based on clang only.
    prefetch_kind:  'levels' (into the second-level cache, and half as far ahead from there into the first) or 'nta'
                    (into the first at once and nowhere else, x86's PREFETCHNTA); without `prefetch` of no meaning.
    nan:            'any', or 'plain' where the device makes no NaN with lower bits set (bf16 only; x86 makes none):
                    then rounding needs no case for them.
    angles:         'cached' (cos and sin from tables that were made before) or 'fused' (each work-item makes those of
                    its token; with `prepared` only).

    Raises `ConfigError` for a value that is not allowed.
    """

    kernel: KernelName = "rows"
    width: int = 4
    access: Access = "builtin"
    store: Store = "plain"
    prepared: bool = False
    heads_per_item: int = 0
    prefetch: int = 0
    prefetch_kind: PrefetchKind = "levels"
    nan: NanKind = "any"
    angles: Angles = "cached"

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[Any, ...]] = {
            "kernel": get_args(KernelName), "width": WIDTHS, "access": get_args(Access), "store": get_args(Store),
            "prepared": (False, True), "prefetch_kind": get_args(PrefetchKind), "nan": get_args(NanKind),
            "angles": get_args(Angles),
        }  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, allowed are {', '.join(map(str, values))}")
        for name in ("heads_per_item", "prefetch"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, allowed are 0 and more")

    def source(self, pairing: Pairing) -> tuple[str, str]:
        """Return (file under `kernels/`, kernel name)."""
        if self.kernel == "strided":
            return "rotate_strided.cl", "rope_rotate_strided"
        return f"rotate_{pairing}.cl", f"rope_rotate_{pairing}"

    def options(self, dtype: str, geometry: Geometry, full_tables: bool = False) -> tuple[str, ...]:
        """Return the compiler's options for a storage type and the pairs of heads."""
        out = [STORAGE_OPTIONS[dtype]]
        if self.kernel == "tiled":
            out += [f"-DW={self.width}", "-DTILED"]
            if self.access == "clang":
                out.append("-DCLANG_VECTORS")
        if self.kernel == "rows":
            out.append(f"-DW={self.width}")
            if self.prepared and not full_tables:
                out += [f"-DPAIRS={geometry.pairs}", f"-DHEAD_DIM={geometry.head_dim}", f"-DWINDOW={geometry.window}"]
                if self.prefetch:
                    out.append(f"-DPREFETCH={self.prefetch}")
                    if self.prefetch_kind == "nta":
                        out.append("-DPREFETCH_NTA")
            if self.access == "clang":
                out.append("-DCLANG_VECTORS")
            if self.store == "nontemporal":
                out.append("-DNONTEMPORAL")
            if self.store == "staged":
                head = -(-geometry.head_dim * DTYPES[dtype].itemsize // 64) * 64
                out.append(f"-DSTAGED={max(STAGED_BYTES, head)}")
            if self.angles == "fused":
                out.append("-DFUSED")
        if self.access == "integer" and dtype == "f16":
            out.append("-DHALF_INTEGER")
        if self.nan == "plain" and dtype == "bf16":
            out.append("-DPLAIN_NAN")
        if full_tables:
            out.append("-DFULL_TABLES")
        return tuple(out)

    @property
    def spelling(self) -> Variant:
        """The variant without what changes only how work is divided: one compiled text."""
        return replace(self, heads_per_item=0)

    def _doubled(self, dtype: str, pairing: Pairing, pairs: int) -> bool:
        """Whether a round of the prepared loop is of twice as many elements: two of 16 bits in a lane of 32."""
        if self.store == "nontemporal":
            return dtype == "bf16" or (dtype == "f16" and self.access == "clang")
        return dtype == "bf16" and (pairing == "normal" or pairs >= 2 * self.width)

    def step_pairs(self, dtype: str, pairing: Pairing, pairs: int) -> int:
        """Return the pairs, of so many of a head, that one round of the vector loop rotates (not 'strided')."""
        if not self.prepared:
            return self.width
        elements = self.width * (2 if self._doubled(dtype, pairing, pairs) else 1)
        return max(1, elements // 2) if pairing == "normal" else elements

    def store_bytes(self, dtype: str, pairing: Pairing, pairs: int) -> int:
        """Return the bytes of the widest vector that is stored at once (not 'strided')."""
        doubled = self._doubled(dtype, pairing, pairs) if self.prepared else pairing == "normal"
        return self.width * DTYPES[dtype].itemsize * (2 if doubled else 1)

    def misfit(self, place: Placement) -> str:
        """Return why this spelling cannot be launched there, in words; '' if it can."""
        if self.kernel == "strided":
            return ""
        pairing = place.geometry.pairing
        dtype, pairs = place.x.dtype, place.geometry.pairs
        if pairing is None:
            return "kernel: the pairs of input and output lie differently, only 'strided' can do that"
        if not (place.x.last_axis_dense and place.y.last_axis_dense):
            return "kernel: the last axis is not dense, only 'strided' can do that"
        if self.kernel == "tiled":
            if 2 * place.x.itemsize * place.geometry.head_dim > TILES_BYTES:
                return f"tile: two heads of {place.geometry.head_dim} elements are more than {TILES_BYTES} bytes"
            if self.prepared or self.store != "plain" or self.prefetch:
                return "tile: nothing is prepared, prefetched or stored past the cache in local memory"
        if self.angles == "fused":
            if not place.phases:
                return "angles: the tables are a caller's, or ggml's recurrence"
            if not self.prepared or pairs % self.width:
                return "angles: made in private memory, by whole vectors, or not at all"
        if self.prepared:
            if place.full_tables:
                return "prepared: the tables are full ones"
            if pairs > MOST_PREPARED:
                return f"prepared: {pairs} pairs, at most {MOST_PREPARED} are kept in private memory"
            if self.width == 1:
                return "prepared: needs a width of 2 or more"
            if dtype == "bf16" and any(
                place.aligned_to(view, alignment) % 4
                for view, alignment in ((place.x, place.x_alignment), (place.y, place.y_alignment))
            ):
                return "prepared: bf16 is read two at a time, which needs even places"
        if self.store == "staged" and (reason := _unstaged(place)):
            return f"store: {reason}"
        if self.store == "nontemporal":
            size, have = self.store_bytes(dtype, pairing, pairs), place.aligned_to(place.y, place.y_alignment)
            if have % size:
                return f"store: vectors of {size} bytes, the output's are aligned to {have}"
        if self.width == 16 and not self.prepared and pairing == "normal":
            return "width: 16 pairs of neighbours would be a vector of 32"
        if self.width > 1 and self.step_pairs(dtype, pairing, pairs) > pairs:
            return f"width: {pairs} pairs do not fill one round of vectors"
        return ""

    def fits(self, place: Placement) -> bool:
        """Whether this spelling can be launched there and does something by vectors."""
        return not self.misfit(place)

    def fitted(self, place: Placement) -> Variant:
        """Return this spelling if it fits, else the nearest that does.

        Nearest, one thing at a time until it fits: what the message of `misfit` names gives way. `kernel` to 'strided',
        `tile` to the kernel 'rows', `angles` to 'cached', `prepared` to False (and 'normal' to half the width, so that
        vectors stay as long as they were), `store` from 'nontemporal' to 'staged'; where that fits not, to half the
        width while vectors of 16 bytes or more do, at last to 'plain', `width` to the next smaller one.
        """
        variant = self
        while reason := variant.misfit(place):
            field = reason.partition(":")[0]
            if field == "kernel":
                return Variant(kernel="strided")
            if field == "tile":
                variant = replace(variant, kernel="rows")
            elif field == "angles":
                variant = replace(variant, angles="cached")
            elif field == "prepared":
                halved = place.geometry.pairing == "normal" and variant.width > 1
                variant = replace(
                    variant, prepared=False, prefetch=0, prefetch_kind="levels", angles="cached",
                    width=variant.width // 2 if halved else variant.width,
                )  # fmt: skip
            elif field == "store":
                if variant.store == "staged":
                    variant = replace(variant, store="nontemporal")
                    continue
                if not _unstaged(place):
                    variant = replace(variant, store="staged")
                    continue
                # Shorter vectors past the cache are still better than long ones through it, down to 16 bytes.
                shorter = place.aligned_to(place.y, place.y_alignment) >= LEAST_STREAMED
                size = variant.store_bytes(place.x.dtype, place.geometry.pairing or "neox", place.geometry.pairs)
                shorter = shorter and size > LEAST_STREAMED
                variant = replace(variant, width=variant.width // 2) if shorter else replace(variant, store="plain")
            else:
                variant = replace(variant, width=variant.width // 2)
        return variant

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Variant:
        """Return the variant of `to_dict`; raises `ConfigError` for anything else."""
        if not isinstance(data, Mapping) or set(data) != {field.name for field in fields(cls)}:
            raise ConfigError(f"variant: got {data!r}")
        if (
            type(data["width"]) is not int
            or type(data["heads_per_item"]) is not int
            or type(data["prefetch"]) is not int
        ):
            raise ConfigError(f"variant: got {data!r}")
        return cls(**data)

    def __str__(self) -> str:
        if self.kernel == "strided":
            return "strided" if self.access == "builtin" else f"strided {self.access}"
        return " ".join(self._words())

    def _words(self) -> Iterator[str]:
        yield f"{self.kernel}{self.width}"
        yield self.access
        if self.prepared:
            yield "prepared"
        if self.store != "plain":
            yield self.store
        if self.prefetch:
            yield f"prefetch{self.prefetch}"
            if self.prefetch_kind == "nta":
                yield "nta"
        if self.nan == "plain":
            yield "plain-nan"
        if self.angles == "fused":
            yield "fused"
        if self.heads_per_item:
            yield f"heads<={self.heads_per_item}"


def _unstaged(place: Placement) -> str:
    """Return why rotated heads cannot gather in private memory before they are stored; '' if they can."""
    y = place.y
    if y.shape[2] > 1 and y.strides[2] != y.shape[3]:
        return "the output's heads do not lie behind each other"
    if y.itemsize * y.shape[3] > MOST_STAGED:
        return f"a head of {y.shape[3]} elements is more than {MOST_STAGED} bytes"
    if place.in_place and place.geometry.rest:
        return "in place, the rest of a head stays where it is"
    return ""


#: Nothing has to be known for this one: any strides, no vectors.
STRIDED = Variant(kernel="strided")


def default_variant(kind: str, dtype: str, pairing: Pairing) -> Variant:
    """Return the spelling for a device kind ('cpu', 'gpu', 'accelerator', ...) that nothing is known of.

    CPUs: vectors of 32 bytes of the computing type, with OpenCL's own functions only. Wider ones change the calling
    convention on a CPU without AVX-512, and that is where drivers were seen to fail. Others: element by element,
    neighbours together.
    """
    if kind != "cpu":
        return STRIDED
    elements = 4 if dtype == "f64" else 8
    return Variant(width=elements // 2 if pairing == "normal" else elements)
