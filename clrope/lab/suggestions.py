"""What an argument with an unknown name may be: lines to put behind `// lab: `."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .contract import Contract
from .contracts import cos_sin_tables
from .meanings import MEANINGS, POINTERS
from .signature import KernelArgument, KernelSignature

#: Names that kernels use, besides those of the contract `cos-sin-tables`.
_ALIASES = {
    "x": "q k qk source", "y": "result res dest destination", "positions": "pos pos_ids position_ids position p",
    "freq_factors": "ff factors", "freq_base": "base theta rope_theta rope_base", "freq_scale": "scale",
    "head_dim": "hd dim_head head_size", "heads": "nh heads_count", "tokens": "n_tokens num_tokens len length",
    "pairs": "half n_pairs num_pairs", "n_dims": "ndims rot_dims n_rot dims", "direction": "sign dir",
    "x_offset": "offset_x x_off in_offset", "y_offset": "offset_y y_off out_offset", "n_offs": "window",
}  # fmt: skip


def suggested(signature: KernelSignature, unknown: Iterable[KernelArgument], contract: Contract) -> list[str]:
    """Return `NAME = MEANING` for each unknown argument, the closest meaning that no other argument has."""
    taken = {contract.arguments.get(a.name, a.name) for a in signature.arguments}
    lines = []
    for argument in unknown:
        if argument.space == "local":
            lines.append(f"local {argument.name} = BYTES")
            continue
        meaning = _closest(argument, contract, taken)
        taken.add(meaning)
        # Rows of finished tables are for the tokens at hand, in order.
        by_row = meaning == "positions" and "cos_table" in taken
        lines.append(f"{argument.name} = {'row_numbers' if by_row else meaning or 'EXPRESSION'}")
    return lines


def _closest(argument: KernelArgument, contract: Contract, taken: set[str]) -> str:
    """Return a meaning for an argument by its name, '' if none is close."""
    names = {**cos_sin_tables.CONTRACT.arguments, **contract.arguments, **{name: name for name in MEANINGS}}
    names |= {alias: meaning for meaning, aliases in _ALIASES.items() for alias in aliases.split()}
    fitting = {
        name.lower(): meaning
        for name, meaning in names.items()
        if meaning not in taken and meaning in MEANINGS and (meaning in POINTERS) == argument.pointer
    }
    near = difflib.get_close_matches(argument.name.lower(), fitting, 1)
    return fitting[near[0]] if near else ""
