// RMS norm and rotation in one pass, by whole heads and vectors. For heads whose elements are contiguous.
//
// Tensors, tables and direction as in rows.cl. scale, scale2: what normed elements are multiplied by, real[HEAD_DIM], with
// OVER_HEADS real[heads * HEAD_DIM]. mean, mean2: 1 / (elements of a sum). eps, eps2: added to the mean of squares.
// Global size: (ceil(tokens / tokens_per_item), ceil((heads + heads2) / heads_per_item), batches); with OVER_HEADS a
// work-item has all heads of its tokens.
//
// Options: PAIRS, HEAD_DIM, WINDOW, NEIGHBOURS, FUSED, NONTEMPORAL as in rows.cl, those of norm.clh. PAIRS may be 0: a norm
// without a rotation. W divides PAIRS and WINDOW, 16 divides HEAD_DIM.
#define FULL_TABLES 0
#include "types.clh"
#include "storage.clh"
#include "angles.clh"
#include "norm.clh"

enum {
  VECTORS = HEAD_DIM / W,
  FIRST = WINDOW / W, // vector of a head in which the window begins
  SLOTS = PAIRS / W,
  DISTANCE = NEIGHBOURS ? 0 : SLOTS, // from a vector with first elements of pairs to the one with second elements
  TURNS = NEIGHBOURS ? 2 * SLOTS : SLOTS,
};

// Cos and sin of a token, once for all heads. Of neighbours, for each vector of the head: v * (c, c, ...) + swapped v *
// (-s, s, ...). Negation is exact, so the bits are the same.
typedef struct {
  reals c[TURNS > 0 ? TURNS : 1], s[TURNS > 0 ? TURNS : 1];
} turns;

inline void arrange(turns *t, const token_angles *from) {
  for (int k = 0; k < SLOTS; ++k) {
    const turn v = cos_sin(from, k * W);
#if NEIGHBOURS
    t->c[2 * k].even = v.c.lo, t->c[2 * k].odd = v.c.lo, t->c[2 * k + 1].even = v.c.hi, t->c[2 * k + 1].odd = v.c.hi;
    t->s[2 * k].even = -v.s.lo, t->s[2 * k].odd = v.s.lo, t->s[2 * k + 1].even = -v.s.hi, t->s[2 * k + 1].odd = v.s.hi;
#else
    t->c[k] = v.c, t->s[k] = v.s;
#endif
  }
}

#define SWAP_2 s10
#define SWAP_4 s1032
#define SWAP_8 s10325476
#define SWAP_16 s1032547698badcfe
inline reals swapped(const reals v) { return v.PASTE(SWAP_, W); }

// Two vectors of a head: first and second elements of W pairs, or twice the same one of W / 2 pairs of neighbours.
typedef struct {
  reals a, b;
} vectors;

inline reals load(__global const element *x, const int k) { return widen(VLOAD(elements, x + k * W)); }

inline vectors rotated(const vectors v, const turns *t, const int k) {
  vectors r;
  if (NEIGHBOURS) {
    r.a = v.a * t->c[k] + swapped(v.a) * t->s[k];
    r.b = r.a;
  } else {
    r.a = v.a * t->c[k] - v.b * t->s[k];
    r.b = v.a * t->s[k] + v.b * t->c[k];
  }
  return r;
}

// What is to be normed: vector k of a head as it is in memory, or rotated.
inline reals input(__global const element *x, const turns *t, const int k) {
  const int within = k - FIRST;
  if (NORM_FIRST || within < 0 || within >= TURNS + DISTANCE)
    return load(x, k);
  const int second = within >= TURNS, slot = second ? within - TURNS : within;
  const vectors v = {load(x, FIRST + slot), load(x, FIRST + DISTANCE + slot)}, r = rotated(v, t, slot);
  return STORED_EACH(second ? r.b : r.a);
}

inline void add_squares(partial_sums *sums, __global const element *x, const turns *t) {
  for (int k = 0; k < VECTORS; ++k) {
    const reals v = input(x, t, k);
    sums->by_vector[k % (16 / W)] += v * v;
  }
}

inline reals normed(const reals v, __global const real *scale, const real root, const int k) {
  return STORED_EACH(STORED_EACH(v * root) * VLOAD(reals, scale + k * W));
}

inline void store(const reals v, __global element *y, const int k) {
#if NONTEMPORAL
  __builtin_nontemporal_store(narrow(v), (__global elements *)(y + k * W));
#else
  VSTORE(elements, narrow(v), y + k * W);
#endif
}

// root: 1 / sqrt(mean of squares + eps).
inline void finish(__global const element *x, __global element *y, __global const real *scale, const real root,
                   const turns *t) {
  for (int k = 0; k < TURNS; ++k) {
    const int first = FIRST + k, second = first + DISTANCE;
    vectors v = {load(x, first), load(x, second)};
    if (NORM_FIRST) {
      v.a = normed(v.a, scale, root, first), v.b = normed(v.b, scale, root, second);
      v = rotated(v, t, k);
    } else {
      v = rotated(v, t, k);
      v.a = normed(STORED_EACH(v.a), scale, root, first), v.b = normed(STORED_EACH(v.b), scale, root, second);
    }
    store(v.a, y, first);
    if (!NEIGHBOURS)
      store(v.b, y, second);
  }
  for (int k = 0; k < FIRST; ++k)
    store(normed(load(x, k), scale, root, k), y, k);
  for (int k = FIRST + TURNS + DISTANCE; k < VECTORS; ++k)
    store(normed(load(x, k), scale, root, k), y, k);
}

// Heads first ... last - 1 of a tensor at a token.
inline void norm_and_rotate(__global const element *x, const long x_head, __global element *y, const long y_head,
                            const int first, const int last, __global const real *scale, const real mean,
                            const real eps, const turns *t) {
  union {
    real each[W];
    reals all;
  } roots;
#if OVER_HEADS
  partial_sums sums;
  sums.all = (REALS(16))(0);
  for (int head = first; head < last; ++head)
    add_squares(&sums, x + head * x_head, t);
  roots.all = inverse_root((reals)(total(&sums) * mean + eps));
  for (int head = first; head < last; ++head)
    finish(x + head * x_head, y + head * y_head, scale + (long)head * HEAD_DIM, roots.each[0], t);
#else
  // The roots of W heads together: each is a chain of operations that wait for one another. The heads are in the cache
  // when they are read again.
  for (int begin = first; begin < last; begin += W) {
    const int end = begin + W < last ? begin + W : last;
    roots.all = (reals)(0);
    for (int head = begin; head < end; ++head) {
      partial_sums sums;
      sums.all = (REALS(16))(0);
      add_squares(&sums, x + head * x_head, t);
      roots.each[head - begin] = total(&sums);
    }
    roots.all = inverse_root(roots.all * mean + eps);
    for (int head = begin; head < end; ++head)
      finish(x + head * x_head, y + head * y_head, scale, roots.each[head - begin], t);
  }
#endif
}

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
  x += x_offset + batch * x_batch;
  y += y_offset + batch * y_batch;
  x2 += x2_offset + batch * x2_batch;
  y2 += y2_offset + batch * y2_batch;
  for (int token = first_token; token < last_token; ++token) {
    const token_angles source = ANGLES_OF(batch * row_stride + token);
    turns t;
    arrange(&t, &source);
    norm_and_rotate(x + token * x_token, x_head, y + token * y_token, y_head, first, min(last, heads), scale, mean, eps,
                    &t);
    norm_and_rotate(x2 + token * x2_token, x2_head, y2 + token * y2_token, y2_head, max(first - heads, 0), last - heads,
                    scale2, mean2, eps2, &t);
  }
}
