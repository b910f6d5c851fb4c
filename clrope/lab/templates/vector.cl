// RoPE by finished tables, four pairs for each work-item: a kernel to start from. Check it with `clrope lab`.
//
// Arguments are named as what they mean; `docs/lab.md` lists the names. Those of the type `long` are counted in elements.
// Cases that the lines `lab: requires` exclude are counted as not expressible.
// lab: requires dtype == 'f32' or dtype == 'f16'
// lab: requires pairs % 4 == 0
// lab: requires head_dim % 4 == 0

#ifdef STORAGE_F16  // 16-bit elements are converted, so that devices without half arithmetic run the kernel, too
#define LOAD4(from) vload_half4(0, from)
#define STORE4(value, to) vstore_half4_rte(value, 0, to)
#else
#define LOAD4(from) vload4(0, from)
#define STORE4(value, to) vstore4(value, 0, to)
#endif

// One work-item for each four slots of a head: pairs that are rotated, or elements that are copied.
// lab: global_size ceil_div(slots, 4), heads, batch * tokens
__kernel void KERNEL(__global const T *x, const long x_offset, const long x_batch, const long x_token, const long x_head,
                     __global T *y, const long y_offset, const long y_batch, const long y_token, const long y_head,
                     __global const float *cos_table, __global const float *sin_table, const long row_stride,
                     const int tokens, const int pairs, const float direction) {
  const int slot = 4 * get_global_id(0);
  const long head = get_global_id(1);
  const long token = get_global_id(2) % tokens, batch = get_global_id(2) / tokens;
  x += x_offset + batch * x_batch + token * x_token + head * x_head;
  y += y_offset + batch * y_batch + token * y_token + head * y_head;

  // Elements behind the rotated ones, from 2 pairs on, are copied.
  if (slot >= pairs) {
    STORE4(LOAD4(x + slot + pairs), y + slot + pairs);
    return;
  }
  const long at = (batch * row_stride + token) * pairs + slot;
  const float4 c = vload4(0, cos_table + at), s = vload4(0, sin_table + at) * direction;
#ifdef NEOX
  const float4 a = LOAD4(x + slot), b = LOAD4(x + slot + pairs);
  STORE4(a * c - b * s, y + slot);
  STORE4(a * s + b * c, y + slot + pairs);
#else
  const float4 low = LOAD4(x + 2 * slot), high = LOAD4(x + 2 * slot + 4);
  const float4 a = (float4)(low.x, low.z, high.x, high.z), b = (float4)(low.y, low.w, high.y, high.w);
  const float4 first = a * c - b * s, second = a * s + b * c;
  STORE4((float4)(first.x, second.x, first.y, second.y), y + 2 * slot);
  STORE4((float4)(first.z, second.z, first.w, second.w), y + 2 * slot + 4);
#endif
}
