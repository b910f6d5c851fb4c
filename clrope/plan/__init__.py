"""From a call's arrays to launches: compiled once for a signature, bound to memory and positions for each call."""
