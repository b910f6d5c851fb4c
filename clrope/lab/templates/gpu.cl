// RoPE by finished tables for GPUs: a kernel to start from. Adjacent work-items handle adjacent groups of four elements of
// a head, so that what they load and store together is in few memory segments, and each does so for several heads of a
// token, with the same cos and sin. Check it with `clrope lab`.
//
// Where your tensors are aligned to 16 bytes, read and write through pointers to vectors of 16 bytes instead (eight
// elements of 16 bits): `kernels/lanes.cl` shows that, and how to compute cos and sin here.
//
// Arguments are named as what they mean; `docs/lab.md` lists the names. Those of the type `long` are counted in elements.
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

// Lanes of a head, four slots each (pairs that are rotated, or elements that are copied), for each four heads of a token.
// lab: global_size ceil_div(head_dim - pairs, 4) * ceil_div(heads, 4), tokens, batch
__kernel void KERNEL(__global const T *x, const long x_offset, const long x_batch, const long x_token, const long x_head,
                     __global T *y, const long y_offset, const long y_batch, const long y_token, const long y_head,
                     __global const float *cos_table, __global const float *sin_table, const long row_stride,
                     const int heads, const int head_dim, const int pairs, const float direction) {
  const int lanes = (head_dim - pairs) / 4, groups = (heads + 3) / 4;
  const int slot = 4 * (int)(get_global_id(0) % lanes), group = (int)(get_global_id(0) / lanes);
  const long token = get_global_id(1), batch = get_global_id(2);
  x += x_offset + batch * x_batch + token * x_token;
  y += y_offset + batch * y_batch + token * y_token;

  float4 c = 0.0f, s = 0.0f;
  if (slot < pairs) {
    const long at = (batch * row_stride + token) * pairs + slot;
    c = vload4(0, cos_table + at);
    s = vload4(0, sin_table + at) * direction;
  }
  // Work-items of adjacent groups have adjacent heads in each round.
  for (int head = group; head < heads; head += groups) {
    __global const T *from = x + head * x_head;
    __global T *to = y + head * y_head;
    if (slot >= pairs) {
      STORE4(LOAD4(from + slot + pairs), to + slot + pairs); // behind the rotated ones, from 2 pairs on
      continue;
    }
#ifdef NEOX
    const float4 a = LOAD4(from + slot), b = LOAD4(from + slot + pairs);
    STORE4(a * c - b * s, to + slot);
    STORE4(a * s + b * c, to + slot + pairs);
#else
    const float4 low = LOAD4(from + 2 * slot), high = LOAD4(from + 2 * slot + 4);
    const float4 a = (float4)(low.x, low.z, high.x, high.z), b = (float4)(low.y, low.w, high.y, high.w);
    const float4 first = a * c - b * s, second = a * s + b * c;
    STORE4((float4)(first.x, second.x, first.y, second.y), to + 2 * slot);
    STORE4((float4)(first.z, second.z, first.w, second.w), to + 2 * slot + 4);
#endif
  }
}
