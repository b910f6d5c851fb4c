// Stage 1: cos and sin of every (position row, pair) from 64-bit phases.
//
// positions: long[axes][rows], axes 1 or 4 (t, h, w, e); step, step_low, axis: per pair; cosine, sine: REAL[rows][pairs],
// times the magnitude. Global size: (ceil(pairs / pairs_per_item), rows).
// Options: WIDE_PHASE, STORAGE_F64 (double tables).
#include "arithmetic.clh"
#include "phase.clh"

__kernel void rope_cache_init(__global const long *positions, const int rows, const int pairs,
                              const int pairs_per_item, __global const ulong *step, __global const long *step_low,
                              __global const uchar *axis, const REAL magnitude, __global REAL *cosine,
                              __global REAL *sine) {
  const int row = (int)get_global_id(1);
  const int first = (int)get_global_id(0) * pairs_per_item;
  const int last = min(first + pairs_per_item, pairs);
  for (int i = first; i < last; ++i) {
    const long position = positions[(size_t)axis[i] * (size_t)rows + (size_t)row];
    REAL c, s;
    cos_sin_of_phase(phase_of(position, step[i], step_low[i]), &c, &s);
    const size_t at = (size_t)row * (size_t)pairs + (size_t)i;
    cosine[at] = c * magnitude;
    sine[at] = s * magnitude;
  }
}
