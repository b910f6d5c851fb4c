// RMS norm of each head and rotation in one pass, for GPUs: adjacent work-items handle adjacent vectors of 16 bytes of a
// head, as in lanes.cl, and read them once. The squares of a head meet in local memory.
//
// Arguments as in lanes.cl, scales and their numbers as in norm_rows.cl. squares: ROW numbers for every LANES work-items.
// Work-item `id` has lane id % LANES of heads g, g + groups, ... of a token, where g is id / LANES % groups: at most
// HEADS. Global size as in lanes.cl; a work-group has a multiple of LANES work-items.
//
// Options: as in lanes.cl, but for COPY_REST and FULL_TABLES; NORM_FIRST and ROUND_EACH of norm.clh; HEADS.
#define FULL_TABLES 0
#include "types.clh"
#include "storage.clh"
#include "angles.clh"
#include "norm.clh"

typedef PASTE(BITS, RUN) run;

enum {
  ROTATING = PAIRS / W, // lanes of a head that rotate
  LANES = ROTATING + (HEAD_DIM - 2 * PAIRS) / RUN,
  ROW = HEADS * HEAD_DIM + 16, // 16 more: the next lanes' row begins in other banks
};

// W first and W second elements of pairs, or the elements of one vector: its halves, or without NEIGHBOURS all in `a`.
typedef struct {
  reals a, b;
} vectors;

inline vectors fetch(__global const element *x, const int rotates) {
  vectors v;
  const run first = *(__global const run *)x;
#if NEIGHBOURS
  v.a = widen(first.even), v.b = widen(first.odd);
#else
  v.a = widen(first), v.b = rotates ? widen(*(__global const run *)(x + PAIRS)) : v.a;
#endif
  return v;
}

inline void put(__global element *y, const vectors v, const int rotates) {
#if NEIGHBOURS
  run r;
  r.even = narrow(v.a), r.odd = narrow(v.b);
  *(__global run *)y = r;
#else
  *(__global run *)y = narrow(v.a);
  if (rotates)
    *(__global run *)(y + PAIRS) = narrow(v.b);
#endif
}

inline void put_squares(__local real *y, const vectors v, const int rotates) {
#if NEIGHBOURS
  REALS(RUN) r;
  r.even = v.a * v.a, r.odd = v.b * v.b;
  *(__local REALS(RUN) *)y = r;
#else
  *(__local reals *)y = v.a * v.a;
  if (rotates)
    *(__local reals *)(y + PAIRS) = v.b * v.b;
#endif
}

inline vectors weights(__global const real *scale, const int rotates) {
  vectors v;
#if NEIGHBOURS
  const REALS(RUN) first = PASTE(vload, RUN)(0, scale);
  v.a = first.even, v.b = first.odd;
#else
  v.a = VLOAD(reals, scale), v.b = rotates ? VLOAD(reals, scale + PAIRS) : v.a;
#endif
  return v;
}

inline vectors rotated(const vectors v, const turn t) {
  const vectors r = {v.a * t.c - v.b * t.s, v.a * t.s + v.b * t.c};
  return r;
}

inline vectors normed(const vectors v, const vectors scale, const real root) {
  const vectors r = {STORED_EACH(STORED_EACH(v.a * root) * scale.a), STORED_EACH(STORED_EACH(v.b * root) * scale.b)};
  return r;
}

// 1 / sqrt(mean of squares + eps) of a head.
inline real root_of(__local const real *sums, const real mean, const real eps) {
  partial_sums s;
  s.all = vload16(0, sums);
  s.by_vector[0] = inverse_root((reals)(total(&s) * mean + eps));
  return s.each[0];
}

__kernel void rope_norm_lanes(TENSOR(const element, x), TENSOR(element, y), const int heads, TENSOR(const element, x2),
                              TENSOR(element, y2), const int heads2, ANGLES, const long row_stride, const int tokens,
                              const int groups, const real direction, __global const real *scale, const real mean,
                              const real eps, __global const real *scale2, const real mean2, const real eps2,
                              __local REALS(16) *squares) {
  const INDEX id = (INDEX)get_global_id(0), batch = (INDEX)get_global_id(1), token = id / (LANES * groups);
  const int lane = (int)(id % LANES), group = (int)(id / LANES % groups);
  const int count = token < tokens ? (heads + heads2 - group + groups - 1) / groups : 0;
  x += x_offset + batch * (INDEX)x_batch + token * (INDEX)x_token;
  y += y_offset + batch * (INDEX)y_batch + token * (INDEX)y_token;
  x2 += x2_offset + batch * (INDEX)x2_batch + token * (INDEX)x2_token;
  y2 += y2_offset + batch * (INDEX)y2_batch + token * (INDEX)y2_token;
  __local real *row = (__local real *)squares + (int)get_local_id(0) / LANES * ROW;

  const int rotates = lane < ROTATING, rest = (lane - ROTATING) * RUN;
  const int place = rotates ? WINDOW + lane * (NEIGHBOURS ? RUN : W) : rest < WINDOW ? rest : rest + 2 * PAIRS;
  turn t;
  if (rotates && count > 0) {
    const token_angles source = ANGLES_OF(batch * (INDEX)row_stride + token);
    t = cos_sin(&source, lane * W);
  }
  vectors v[HEADS];
  UNROLL_8
  for (int k = 0; k < HEADS; ++k) {
    const int head = group + k * groups, other = head - heads;
    if (k < count)
      v[k] = fetch(place + (other < 0 ? x + head * (INDEX)x_head : x2 + other * (INDEX)x2_head), rotates);
  }
  UNROLL_8
  for (int k = 0; k < HEADS; ++k) {
    if (k < count) {
      if (!NORM_FIRST && rotates) {
        v[k] = rotated(v[k], t);
        v[k].a = STORED_EACH(v[k].a), v[k].b = STORED_EACH(v[k].b);
      }
      put_squares(row + k * HEAD_DIM + place, v[k], rotates);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = 0; k < count; ++k) {
    for (int l = lane; l < 16; l += LANES) {
      __local real *column = row + k * HEAD_DIM + l;
      real sum = 0;
      for (int i = 0; i < HEAD_DIM; i += 16)
        sum += column[i];
      *column = sum;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL_8
  for (int k = 0; k < HEADS; ++k) {
    if (k < count) {
      const int head = group + k * groups, other = head - heads;
      const real root = root_of(row + k * HEAD_DIM, other < 0 ? mean : mean2, other < 0 ? eps : eps2);
      vectors r = normed(v[k], weights(place + (other < 0 ? scale : scale2), rotates), root);
      if (NORM_FIRST && rotates)
        r = rotated(r, t);
      put(place + (other < 0 ? y + head * (INDEX)y_head : y2 + other * (INDEX)y2_head), r, rotates);
    }
  }
}
