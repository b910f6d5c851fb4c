"""A tiled kernel for an NPU's vector cores, tried on this device and laid out for a machine that is not here."""

import tempfile
from pathlib import Path

import numpy as np

import clrope
from clrope.lab.new_kernel import write_new
from clrope.lab.npu import machine, tiling

BATCH, TOKENS, HEADS, HEAD_DIM = 1, 96, 8, 128

# What the host computes for the machine: which tokens and heads each core copies into its scratchpad.
target = machine("edge")
tiles = tiling(target, tokens=BATCH * TOKENS, heads=HEADS, head_dim=HEAD_DIM, dtype="f16")
first = next(iter(tiles.ranges()))
print(f"{target.name}: {tiles.tiles} tiles on {tiles.cores} cores, {tiles.bytes_used} of {target.ub} bytes")
print(f"the first tile: tokens {first[0].start} to {first[0].stop - 1}, heads {first[1].start} to {first[1].stop - 1}")

# The same kernel with that machine's numbers: a work-group for each core, local memory as its scratchpad.
with tempfile.TemporaryDirectory() as folder:
    path = write_new(str(Path(folder) / "rope_npu"), "npu")
    scratchpad = min(target.ub, 32768)  # every OpenCL device has that much
    options = [f"-DNPU_CORES={target.cores}", f"-DNPU_UB={scratchpad}", f"-DNPU_ALIGN={target.align}"]
    config = clrope.RopeConfig("neox")
    op = clrope.Rope(config, kernel=clrope.lab.load(path, options=options))
    x = np.random.default_rng().uniform(-1, 1, (BATCH, TOKENS, HEADS, HEAD_DIM)).astype(np.float16)
    y = op(x, 100)
print(f"NMSE {clrope.compare(y, clrope.reference.rope(x, 100, config)).nmse:.1e}")
