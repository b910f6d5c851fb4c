// RoPE by finished tables of cos and sin: a kernel to start from. Check it with `clrope lab` and this file's name.
//
// Arguments are named as what they mean; `docs/lab.md` lists the names. Those of the type `long` are counted in elements.
// What a kernel has no argument for, it cannot express: without `direction` it would rotate forward only.
//
// Macros that the lab gives to a file that reads them: T, the type of an element; NEOX or NORMAL, the pairing;
// STORAGE_F32, STORAGE_F16, ..., the storage type; REAL, the type to compute in.

#ifdef STORAGE_F16  // 16-bit elements are converted, so that devices without half arithmetic run the kernel, too
#define LOAD(from) vload_half(0, from)
#define STORE(value, to) vstore_half_rte(value, 0, to)
#else
#define LOAD(from) (*(from))
#define STORE(value, to) (*(to) = (value))
#endif

// One work-item for each slot of a head: a pair that is rotated, or an element that is copied.
// lab: global_size slots, heads, batch * tokens
__kernel void KERNEL(__global const T *x, const long x_offset,
                     const long x_batch, const long x_token, const long x_head, const long x_element,
                     __global T *y, const long y_offset,
                     const long y_batch, const long y_token, const long y_head, const long y_element,
                     __global const REAL *cos_table, __global const REAL *sin_table, const long row_stride,
                     const int tokens, const int pairs, const int n_offs, const int direction) {
  const long slot = get_global_id(0), head = get_global_id(1);
  const long token = get_global_id(2) % tokens, batch = get_global_id(2) / tokens;
  x += x_offset + batch * x_batch + token * x_token + head * x_head;
  y += y_offset + batch * y_batch + token * y_token + head * y_head;

  // Elements outside of the rotated ones, n_offs to n_offs + 2 pairs, are copied.
  if (slot >= pairs) {
    const long copied = slot - pairs < n_offs ? slot - pairs : slot + pairs;
    STORE(LOAD(x + copied * x_element), y + copied * y_element);
    return;
  }
#ifdef NEOX
  const long first = n_offs + slot, second = first + pairs;
#else
  const long first = n_offs + 2 * slot, second = first + 1;
#endif
  const long at = (batch * row_stride + token) * pairs + slot;
  const REAL c = cos_table[at], s = sin_table[at] * direction;
  // Both are read before one is written: input and output may be the same memory.
  const REAL a = LOAD(x + first * x_element), b = LOAD(x + second * x_element);
  STORE(a * c - b * s, y + first * y_element);
  STORE(a * s + b * c, y + second * y_element);
}
