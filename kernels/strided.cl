// Stage 2 for any strides, also of the last axis, and any pairing by steps, one element at a time: the operation stated
// plainly, slower than rows.cl and lanes.cl, with the same bits. A head has slots: one for each pair, one for each copied
// element.
//
// Pair i of the input is (window + i * step, window + i * step + distance) in units of the last axis, and likewise for
// the output with its own step and distance. Other arguments as in rows.cl, with the last axis' strides.
// slots: head_dim - pairs if elements are copied, else pairs.
// Global size: (ceil(slots / slots_per_item), heads, batches * tokens).
#include "types.clh"
#include "storage.clh"
#include "angles.clh"

__kernel void rope_rotate_strided(TENSOR(const element, x), const long x_element, TENSOR(element, y),
                                  const long y_element, ANGLES, const long row_stride, const int tokens,
                                  const int pairs, const int window, const real direction, const int x_step,
                                  const int x_distance, const int y_step, const int y_distance, const int slots,
                                  const int slots_per_item) {
  const int head = (int)get_global_id(1);
  const long token = (long)(get_global_id(2) % (size_t)tokens), batch = (long)(get_global_id(2) / (size_t)tokens);
  x += x_offset + batch * x_batch + token * x_token + head * x_head;
  y += y_offset + batch * y_batch + token * y_token + head * y_head;
  const int second = FULL_TABLES ? pairs : 0; // where cos and sin of second elements begin
  const token_angles angles = ANGLES_OF(batch * row_stride + token);
  const int first = (int)get_global_id(0) * slots_per_item;
  const int last = min(first + slots_per_item, slots);
  for (int slot = first; slot < last; ++slot) {
    if (slot >= pairs) {
      // The elements before the window, then those behind it.
      const int k = slot - pairs < window ? slot - pairs : slot + pairs;
      y[k * y_element] = x[k * x_element];
      continue;
    }
    const real c0 = angles.cosine[slot], s0 = angles.sine[slot] * direction;
    const real c1 = angles.cosine[slot + second], s1 = angles.sine[slot + second] * direction;
    const long from = window + (long)slot * x_step, to = window + (long)slot * y_step;
    const real a = widen(x[from * x_element]), b = widen(x[(from + x_distance) * x_element]);
    y[to * y_element] = narrow(a * c0 - b * s0);
    y[(to + y_distance) * y_element] = narrow(a * s1 + b * c1);
  }
}
