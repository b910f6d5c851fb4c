// Rotation of q, and of k and v into the rows of a KV cache, in one pass, by whole heads and vectors. For heads whose
// elements are contiguous. With SHIFT the heads of one tensor x, which is such a cache, are rotated in place.
//
// x, y: q and its result. x2, y2: k and its cache; x3, y3: v, which is only copied, and its cache. Arguments as in
// norm_rows.cl. slots[batches * tokens]: where a token's k and v go: page slot / page_size, row slot % page_size of it;
// below 0 nowhere. A cache has strides of pages, rows and heads where a tensor has those of batches, tokens and heads.
// v_dim: elements of a head of v.
// Global size: (ceil(tokens / tokens_per_item), ceil((heads + heads2 + heads3) / heads_per_item), batches); with
// OVER_HEADS a work-item has all heads of its tokens.
//
// Options: those of heads.clh and cache_storage.clh; FUSED as in rows.cl; SHIFT. W divides HEAD_DIM and v_dim.
#include "heads.clh"

inline void copy_heads(__global const element *x, const long x_head, __global cache_element *y, const long y_head,
                       const int first, const int last, const int v_dim) {
  for (int head = first; head < last; ++head)
    for (int k = 0; k < v_dim; k += W) {
      const elements v = VLOAD(elements, x + head * x_head + k);
#if SAME_TYPE
      VSTORE(cache_elements, v, y + head * y_head + k);
#else
      VSTORE(cache_elements, cache_narrow(widen(v)), y + head * y_head + k);
#endif
    }
}

__kernel void rope_cache_rows(TENSOR(const element, x), TENSOR(element, y), const int heads, TENSOR(const element, x2),
                              TENSOR(cache_element, y2), const int heads2, ANGLES, const long row_stride,
                              const int tokens, const int tokens_per_item, const int heads_per_item,
                              const real direction, __global const real *scale, const real mean, const real eps,
                              __global const real *scale2, const real mean2, const real eps2, TENSOR(const element, x3),
                              TENSOR(cache_element, y3), const int heads3, const int v_dim, __global const long *slots,
                              const long page_size) {
  const long batch = (long)get_global_id(2);
  const int first_token = (int)get_global_id(0) * tokens_per_item;
  const int last_token = min(first_token + tokens_per_item, tokens);
  const int first = (int)get_global_id(1) * heads_per_item;
  const int last = min(first + heads_per_item, heads + heads2 + heads3);
  for (int token = first_token; token < last_token; ++token) {
    const long slot = slots[batch * tokens + token], page = slot / page_size, row = slot % page_size;
    const int stored = slot >= 0;
    const long b = SHIFT ? page : batch, s = SHIFT ? row : (long)token;
    if (SHIFT && !stored)
      continue;
    const token_angles source = ANGLES_OF(batch * row_stride + token);
    turns t;
    arrange(&t, &source);
    const some_heads one = {x + x_offset + b * x_batch + s * x_token, x_head, y,
                            y_offset + b * y_batch + s * y_token, y_head, 0, first, min(last, heads), scale, mean, eps};
    const some_heads two = {x2 + x2_offset + batch * x2_batch + token * x2_token, x2_head, y2,
                            y2_offset + page * y2_batch + row * y2_token, y2_head, 1, max(first - heads, 0),
                            SHIFT || !stored ? 0 : min(last - heads, heads2), scale2, mean2, eps2};
    by_head roots = first_roots(first < heads ? &one : &two, &t);
    some_heads none = two;
    none.last = none.first;
    const some_heads after = last > heads ? two : none;
    norm_and_rotate(&one, &t, &roots, &after);
    if (SHIFT || !stored)
      continue;
    norm_and_rotate(&two, &t, &roots, &none);
    copy_heads(x3 + x3_offset + batch * x3_batch + token * x3_token, x3_head,
               y3 + y3_offset + page * y3_batch + row * y3_token, y3_head, max(first - heads - heads2, 0),
               last - heads - heads2, v_dim);
  }
}
