// Stage 1: cos and sin of every (position row, pair) from 64-bit phases, real[rows][pairs], times the magnitude.
// Arguments as in angles.clh. Global size: (ceil(pairs / pairs_per_item), rows).
// Options: those of angles.clh; W has to divide pairs_per_item and pairs.
#include "types.clh"
#include "angles.clh"

__kernel void rope_cache_init(POSITIONS, const int rows, const int pairs,
                              const int pairs_per_item, __global const ulong *step, __global const long *step_low,
                              __global const uchar *axis, const real magnitude, __global real *cosine,
                              __global real *sine) {
  const size_t row = get_global_id(1);
  const int first = (int)get_global_id(0) * pairs_per_item;
  const int last = min(first + pairs_per_item, pairs);
  cosine += row * (size_t)pairs;
  sine += row * (size_t)pairs;
  for (int i = first; i < last; i += W) {
    reals c, s;
    cos_sin_of_phase(phases_of(positions, (size_t)rows, row, step, step_low, axis, i), &c, &s);
    VSTORE(reals, c * magnitude, cosine + i);
    VSTORE(reals, s * magnitude, sine + i);
  }
}
