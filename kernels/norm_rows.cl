// RMS norm and rotation in one pass, by whole heads and vectors. For heads whose elements are contiguous.
//
// Tensors, tables and direction as in rows.cl. scale, scale2: what normed elements are multiplied by, real[HEAD_DIM], with
// OVER_HEADS real[heads * HEAD_DIM]. mean, mean2: 1 / (elements of a sum). eps, eps2: added to the mean of squares.
// Global size: (ceil(tokens / tokens_per_item), ceil((heads + heads2) / heads_per_item), batches); with OVER_HEADS a
// work-item has all heads of its tokens.
//
// Options: those of heads.clh; FUSED as in rows.cl.
#define NORMED 1
#include "heads.clh"

__kernel void rope_norm_rows(__global const element *x, const long x_offset, const long x_batch, const long x_token,
                             const long x_head, __global element *y, const long y_offset, const long y_batch,
                             const long y_token, const long y_head, const int heads, __global const element *x2,
                             const long x2_offset, const long x2_batch, const long x2_token, const long x2_head,
                             __global element *y2, const long y2_offset, const long y2_batch, const long y2_token,
                             const long y2_head, const int heads2, ANGLES, const long row_stride, const int tokens,
                             const int tokens_per_item, const int heads_per_item, const real direction,
                             __global const real *scale, const real mean, const real eps, __global const real *scale2,
                             const real mean2, const real eps2) {
  const long batch = (long)get_global_id(2);
  const int first_token = (int)get_global_id(0) * tokens_per_item;
  const int last_token = min(first_token + tokens_per_item, tokens);
  const int first = (int)get_global_id(1) * heads_per_item;
  const int last = min(first + heads_per_item, heads + heads2);
  by_head roots;
  for (int token = first_token; token < last_token; ++token) {
    const token_angles source = ANGLES_OF(batch * row_stride + token);
    turns t;
    arrange(&t, &source);
    const some_heads one = {x + x_offset + batch * x_batch + token * x_token, x_head, y,
                            y_offset + batch * y_batch + token * y_token, y_head, 0, first, min(last, heads),
                            scale, mean, eps};
    const some_heads two = {x2 + x2_offset + batch * x2_batch + token * x2_token, x2_head, y2,
                            y2_offset + batch * y2_batch + token * y2_token, y2_head, 0, max(first - heads, 0),
                            last - heads, scale2, mean2, eps2};
    // The next token's first heads. Their squares can be summed before its angles are known if the norm comes first.
    some_heads next = first < heads ? one : two;
    if (!NORM_FIRST || token == first_token)
      roots = first_roots(&next, &t);
    next.x += first < heads ? x_token : x2_token;
    if (!NORM_FIRST || token + 1 == last_token)
      next.last = next.first;
    const some_heads after = last > heads ? two : next;
    norm_and_rotate(&one, &t, &roots, &after);
    norm_and_rotate(&two, &t, &roots, &next);
  }
}
