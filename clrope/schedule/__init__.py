"""From a checked call to launches: tables of cos and sin, chunks, buffers, the plan."""
