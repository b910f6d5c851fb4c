"""Which spellings the chooser tries, per kind of device, storage type and pairing: simplest first.

The order matters: of spellings that are equally fast, the first is taken. What is not listed has been tried on the
devices at hand and never won (widths of 2, 'integer' without `prepared` on bf16, ...) or has no meaning there.
"""

from __future__ import annotations

from dataclasses import replace

from .variants import PREFETCH, PREFETCH_NTA, STRIDED, Access, Pairing, Variant


def candidates(kind: str, dtype: str, pairing: Pairing) -> list[Variant]:
    """Return the spellings to try on a device kind ('cpu', 'gpu', 'accelerator', 'custom'), none twice.

    The first is the strided one, which the others may be judged by.
    """
    return _for_cpu(dtype, pairing) if kind == "cpu" else _for_others(dtype)


def _for_cpu(dtype: str, pairing: Pairing) -> list[Variant]:
    # The widths with vectors of 16, 32 and 64 bytes of the computing type; neighbours are loaded two at a time.
    whole = (2, 4, 8) if dtype == "f64" else (4, 8, 16)
    halves = tuple(width // 2 for width in whole) if pairing == "normal" else whole
    both: tuple[Access, ...] = ("builtin", "clang")
    out = [STRIDED]
    out += [Variant(width=width, access=access) for width in halves for access in both]
    # All heads of a token in one work-item, however few tokens there are: fewer, longer work-items.
    out += [Variant(width=halves[1], access=access, heads_per_item=1 << 16) for access in both]
    if dtype == "f16":
        out += [Variant(width=width, access="integer") for width in halves[:2]]
        out += [Variant(width=width, access="integer", prepared=True) for width in whole[1:]]
    out += [Variant(width=width, access=access, prepared=True) for width in whole[1:] for access in both]
    for width in whole:
        out.append(Variant(width=width, access="clang", prepared=True, store="nontemporal"))
        # vstore_half has no spelling that goes past the cache.
        access: Access = "integer" if dtype == "f16" else "builtin"
        if width > whole[0]:
            out.append(Variant(width=width, access=access, prepared=True, store="nontemporal"))
    out += [replace(variant, prefetch=PREFETCH) for variant in out if variant.prepared and variant.width in whole[1:]]
    # Where single vectors could go past the cache this is hardly ever faster; it is for where they cannot.
    out += [
        Variant(width=width, access="clang", prepared=True, store="staged", prefetch=PREFETCH) for width in whole[1:]
    ]
    out.append(Variant(width=whole[1], prepared=True, store="staged"))
    out += [
        replace(variant, prefetch=PREFETCH_NTA, prefetch_kind="nta")
        for variant in out if variant.prefetch and variant.access == "clang"
    ]  # fmt: skip
    if dtype == "bf16":
        out += [replace(variant, nan="plain") for variant in out if variant.prepared]
    # Without tables: less to read, more to compute.
    out += [
        replace(variant, angles="fused") for variant in out
        if variant.width in whole[1:] and variant.prefetch and variant.access == "clang" and variant.store != "staged"
    ]  # fmt: skip
    out += [Variant("tiled", width=halves[1], access=access) for access in both]
    return out


def _for_others(dtype: str) -> list[Variant]:
    # Many small work-items, neighbours in memory next to each other: the strided kernel, then short vectors by head.
    out = [STRIDED]
    if dtype == "f16":
        out.append(Variant(kernel="strided", access="integer"))
    out += [Variant(width=width, heads_per_item=heads) for width in (2, 4, 8) for heads in (0, 4)]
    out += [Variant(width=4, prepared=True, heads_per_item=heads) for heads in (4, 1 << 16)]
    out.append(Variant(width=4, prepared=True, heads_per_item=1 << 16, angles="fused"))
    out += [Variant("tiled", width=width, heads_per_item=heads) for width in (1, 2, 4) for heads in (8, 1 << 16)]
    return out
