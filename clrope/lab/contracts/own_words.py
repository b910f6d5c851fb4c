"""The contract `clrope`: arguments are named as what they mean (`docs/lab.md` lists the names)."""

from ..contract import Contract

CONTRACT = Contract("clrope", "arguments named as what they mean: x, y, cos_table, tokens, heads, ...")
