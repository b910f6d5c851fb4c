// Rows of a tensor into a KV cache, or with FROM_CACHE out of one, one element at a time, for any strides.
//
// x, y: (batch, token, head, element), where one is a cache (page, row, head, element); slots, page_size as in
// cache_rows.cl. Global size: (heads, tokens, batches).
// Options: cache_storage.clh's, of y; W is 1.
#include "types.clh"
#include "storage.clh"
#include "cache_storage.clh"

__kernel void rope_move_rows(TENSOR(const element, x), const long x_element, TENSOR(cache_element, y),
                             const long y_element, __global const long *slots, const long page_size,
                             const int head_dim) {
  const long head = (long)get_global_id(0), token = (long)get_global_id(1), batch = (long)get_global_id(2);
  const long slot = slots[batch * (long)get_global_size(1) + token];
  if (slot < 0)
    return;
  const long page = slot / page_size, row = slot % page_size;
  x += x_offset + (FROM_CACHE ? page : batch) * x_batch + (FROM_CACHE ? row : token) * x_token + head * x_head;
  y += y_offset + (FROM_CACHE ? batch : page) * y_batch + (FROM_CACHE ? token : row) * y_token + head * y_head;
  for (int k = 0; k < head_dim; ++k) {
#if SAME_TYPE
    y[k * y_element] = x[k * x_element];
#else
    y[k * y_element] = cache_narrow(widen(x[k * x_element]));
#endif
  }
}
