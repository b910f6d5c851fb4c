// RMS norm and rotation in one pass for any strides, one element at a time: the operation stated plainly, slower than
// norm_rows.cl, with the same bits. A work-item has one head of a token; with OVER_HEADS all heads of it.
//
// Arguments as in norm_rows.cl, for one tensor, with the last axis' strides; cos and sin from tables.
// Global size: (heads, or 1 with OVER_HEADS, batches * tokens).
// Options: PAIRS, HEAD_DIM, WINDOW, NEIGHBOURS as in rows.cl, those of norm.clh; W is 1.
#include "types.clh"
#include "storage.clh"
#include "norm.clh"

enum { STEP = NEIGHBOURS ? 2 : 1, DISTANCE = NEIGHBOURS || !PAIRS ? 1 : PAIRS };

// A head, with the angles of its token.
typedef struct {
  __global const element *x;
  long step;
  __global const real *cosine, *sine;
  real direction;
} head;

inline real fetch(const head *h, const int k) { return widen(h->x[k * h->step]); }

// One element of a pair, rotated. first, second: the pair's elements.
inline real rotated(const head *h, const int pair, const real first, const real second, const int is_second) {
  const real c = h->cosine[pair], s = h->sine[pair] * h->direction;
  return is_second ? first * s + second * c : first * c - second * s;
}

// What is to be normed: element k as it is in memory, or rotated.
inline real input(const head *h, const int k) {
  const int within = k - WINDOW;
  if (NORM_FIRST || within < 0 || within >= 2 * PAIRS)
    return fetch(h, k);
  const int pair = NEIGHBOURS ? within / 2 : within % DISTANCE, first = WINDOW + pair * STEP;
  return STORED_EACH(rotated(h, pair, fetch(h, first), fetch(h, first + DISTANCE), k != first));
}

// before: elements of heads before this one. volatile: for AVX-512 Intel's compiler adds in another order, or adds wrongly.
inline void add_squares(partial_sums *sums, const head *h, const long before) {
  volatile real *each = sums->each;
  for (int k = 0; k < HEAD_DIM; ++k) {
    const real v = input(h, k);
    each[(before + k) % 16] += v * v;
  }
}

inline real normed(const real v, const real root, const real scale) {
  return STORED_EACH(STORED_EACH(v * root) * scale);
}

inline void finish(const head *h, __global element *y, const long y_step, __global const real *scale, const real root) {
  for (int k = 0; k < WINDOW; ++k)
    y[k * y_step] = narrow(normed(fetch(h, k), root, scale[k]));
  for (int k = WINDOW + 2 * PAIRS; k < HEAD_DIM; ++k)
    y[k * y_step] = narrow(normed(fetch(h, k), root, scale[k]));
  for (int pair = 0; pair < PAIRS; ++pair) {
    const int first = WINDOW + pair * STEP, second = first + DISTANCE;
    real a = fetch(h, first), b = fetch(h, second);
    if (NORM_FIRST) {
      a = normed(a, root, scale[first]), b = normed(b, root, scale[second]);
      y[first * y_step] = narrow(rotated(h, pair, a, b, 0));
      y[second * y_step] = narrow(rotated(h, pair, a, b, 1));
    } else {
      const real c = STORED_EACH(rotated(h, pair, a, b, 0)), d = STORED_EACH(rotated(h, pair, a, b, 1));
      y[first * y_step] = narrow(normed(c, root, scale[first]));
      y[second * y_step] = narrow(normed(d, root, scale[second]));
    }
  }
}

__kernel void rope_norm_strided(TENSOR(const element, x), const long x_element, TENSOR(element, y), const long y_element,
                                const int heads, __global const real *cosine, __global const real *sine,
                                const long row_stride, const int tokens, const int heads_per_item, const real direction,
                                __global const real *scale, const real mean, const real eps) {
  const long token = (long)(get_global_id(1) % (size_t)tokens), batch = (long)(get_global_id(1) / (size_t)tokens);
  const int first = (int)get_global_id(0) * heads_per_item, last = min(first + heads_per_item, heads);
  const size_t row = (size_t)(batch * row_stride + token) * (PAIRS > 0 ? PAIRS : 1);
  x += x_offset + batch * x_batch + token * x_token;
  y += y_offset + batch * y_batch + token * y_token;
  head h = {x, x_element, cosine + row, sine + row, direction};
  partial_sums sums;
  sums.all = (REALS(16))(0);
  for (int k = first; k < last; ++k) {
    h.x = x + k * x_head;
    add_squares(&sums, &h, (long)(k - first) * HEAD_DIM);
  }
  const real root = inverse_root(total(&sums) * mean + eps);
  for (int k = first; k < last; ++k) {
    h.x = x + k * x_head;
    finish(&h, y + k * y_head, y_element, scale + (OVER_HEADS ? (long)k * HEAD_DIM : 0), root);
  }
}
