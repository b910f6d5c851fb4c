// Stage 2 for GPUs: adjacent work-items handle adjacent vectors of 16 bytes of a head, so that what a group of them loads
// and stores at once is in as few memory segments as can be. A work-item does so for several heads of a token, with the
// same cos and sin. For heads whose elements are contiguous and whose vectors are aligned.
//
// Arguments as in rows.cl. Work-item `id` has lane id % LANES of heads g, g + groups, ... of a token, where g is
// id / LANES % groups; the second tensor's heads follow the first's.
// Global size: (tokens * groups * LANES or more, batches).
//
// Options: PAIRS, HEAD_DIM, WINDOW, NEIGHBOURS, COPY_REST, FUSED, FULL_TABLES as in rows.cl;
//   RUN    elements in 16 bytes; W is as many, or half of them with NEIGHBOURS, so that a lane has W pairs
//   INDEX  int, or long where a tensor has places of 2^31 or more
#include "types.clh"
#include "storage.clh"
#include "angles.clh"

typedef PASTE(BITS, RUN) run;

enum {
  ROTATING = PAIRS / W, // lanes of a head that rotate; the others copy
  LANES = ROTATING + (COPY_REST ? (HEAD_DIM - 2 * PAIRS) / RUN : 0),
  SECOND = FULL_TABLES ? PAIRS : 0,
};

inline run fetch(__global const element *p) { return *(__global const run *)p; }
inline void put(__global element *p, const run v) { *(__global run *)p = v; }

inline void rotate(__global const element *x, __global element *y, const turn first, const turn second) {
#if NEIGHBOURS
  const run v = fetch(x);
  const numbers a = widen(v.even), b = widen(v.odd);
  run r;
  r.even = narrow(a * first.c - b * first.s);
  r.odd = narrow(a * second.s + b * second.c);
  put(y, r);
#else
  const numbers a = widen(fetch(x)), b = widen(fetch(x + PAIRS));
  put(y, narrow(a * first.c - b * first.s));
  put(y + PAIRS, narrow(a * second.s + b * second.c));
#endif
}

__kernel void rope_rotate_lanes(TENSOR(const element, x), TENSOR(element, y), const int heads, TENSOR(const element, x2),
                                TENSOR(element, y2), const int heads2, ANGLES, const long row_stride, const int tokens,
                                const int groups, const real direction) {
  const INDEX id = (INDEX)get_global_id(0), batch = (INDEX)get_global_id(1), token = id / (LANES * groups);
  const int lane = (int)(id % LANES), group = (int)(id / LANES % groups);
  if (token >= tokens)
    return;
  x += x_offset + batch * (INDEX)x_batch + token * (INDEX)x_token;
  y += y_offset + batch * (INDEX)y_batch + token * (INDEX)y_token;
  x2 += x2_offset + batch * (INDEX)x2_batch + token * (INDEX)x2_token;
  y2 += y2_offset + batch * (INDEX)y2_batch + token * (INDEX)y2_token;

  const int rotates = lane < ROTATING, pair = lane * W, copied = (lane - ROTATING) * RUN;
  int place = WINDOW + (NEIGHBOURS ? 2 * pair : pair);
  turn first, second;
  if (rotates) {
    const token_angles source = ANGLES_OF(batch * (INDEX)row_stride + token);
    first = cos_sin(&source, pair);
    second = FULL_TABLES ? cos_sin(&source, SECOND + pair) : first;
  } else {
    place = copied < WINDOW ? copied : copied + 2 * PAIRS;
  }
  for (int head = group; head < heads + heads2; head += groups) {
    const INDEX other = head - heads;
    __global const element *from = place + (other < 0 ? x + head * (INDEX)x_head : x2 + other * (INDEX)x2_head);
    __global element *to = place + (other < 0 ? y + head * (INDEX)y_head : y2 + other * (INDEX)y2_head);
    if (rotates)
      rotate(from, to, first, second);
    else
      put(to, fetch(from));
  }
}
