// Stage 1: cos and sin of every (position row, pair) from 64-bit phases.
//
// positions: long[axes][rows], axes 1 or 4 (t, h, w, e); step, step_low, axis: per pair; cosine, sine: REAL[rows][pairs],
// times the magnitude. Global size: (ceil(pairs / pairs_per_item), rows).
// Options: W (pairs at once; more than 1 only with one axis, without WIDE_PHASE, and if it divides pairs_per_item and
// pairs), WIDE_PHASE (use step_low too: positions beyond ±2^31, and double), STORAGE_F64 (double tables).
#include "arithmetic.clh"
#include "phase.clh"

__kernel void rope_cache_init(__global const long *positions, const int rows, const int pairs,
                              const int pairs_per_item, __global const ulong *step, __global const long *step_low,
                              __global const uchar *axis, const REAL magnitude, __global REAL *cosine,
                              __global REAL *sine) {
  const int row = (int)get_global_id(1);
  const int first = (int)get_global_id(0) * pairs_per_item;
  const int last = min(first + pairs_per_item, pairs);
  cosine += (size_t)row * (size_t)pairs;
  sine += (size_t)row * (size_t)pairs;
  for (int i = first; i < last; i += W) {
    // The product wraps, which makes it exact modulo one turn.
#if W > 1
    const VEC(ulong, W) phase = (ulong)positions[row] * VLOAD(W, ulong, step + i);
#else
    const long position = positions[(size_t)axis[i] * (size_t)rows + (size_t)row];
    ulong phase = (ulong)position * step[i];
#ifdef WIDE_PHASE
    phase += (ulong)mul_hi(position, step_low[i]);
#endif
#endif
    VEC(REAL, W) c, s;
    cos_sin_of_phase(phase, &c, &s);
    VSTORE(W, REAL, c * magnitude, cosine + i);
    VSTORE(W, REAL, s * magnitude, sine + i);
  }
}
