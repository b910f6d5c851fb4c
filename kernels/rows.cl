// Stage 2 by whole heads: a work-item rotates several heads of a token by vectors. For heads whose elements are
// contiguous; the fastest kernel on CPUs. `rope_rotate_rows`, step by step, is at the end.
//
// x, y: tensors in storage type, each with the offset of its first element and its strides (in elements) of batch, token
// and head. x2, y2: a second tensor with the same batches and tokens (k with q), with heads2 heads, 0 if there is none.
// cosine, sine: rows of real[pairs], with FULL_TABLES of real[2 * pairs]: first the values for first elements of pairs,
// then those for second ones. Batch b and token s use row b * row_stride + s. direction: 1, or -1 for the transpose.
// Global size: (ceil(tokens / tokens_per_item), ceil((heads + heads2) / heads_per_item), batches).
//
// Options, all numbers:
//   PAIRS, HEAD_DIM, WINDOW  the shape of a head; WINDOW: the first rotated element. PAIRS is at least ROUND.
//   NEIGHBOURS  pairs are (2i, 2i + 1) ("normal"); otherwise (i, i + PAIRS) ("neox")
//   COPY_REST   elements outside the window are copied (not if y is x)
//   FUSED       a work-item computes cos and sin of its tokens itself (angles.clh); otherwise they come from tables
//   PACKED      bf16 at even places: a lane of 32 bits holds two
//   NONTEMPORAL stores do not go through the cache; outputs are aligned to a whole vector
//   PREFETCH    memory is prefetched about so many bytes, but whole heads, ahead; 0: not. PREFETCH_NTA: into the first
//               level only, for processors that fill it without delay
#include "types.clh"
#include "storage.clh"
#include "angles.clh"

// min and max are avoided in loops: some drivers call them.
enum {
  ROUND = NEIGHBOURS ? W : 2 * W,   // pairs that are rotated at once: vectors of 2 * W elements
  ROUNDED = PAIRS / ROUND * ROUND,  // pairs of whole rounds
  LEFT = PAIRS - ROUNDED,           // the others; then the last ROUND pairs are a round, too, which overlaps
  SLOTS = ROUNDED + (LEFT ? ROUND : 0),
  REST = HEAD_DIM - 2 * PAIRS,
  WINDOWS_ONLY = (REST > 0) & (COPY_REST == 0),
  LINE = 64 / sizeof(element),
  // Line by line between the loads, because the buffers that fill the first level are few and non-temporal stores need
  // them, too; otherwise a head's lines all together.
  INTERLEAVED = (LEFT == 0) & (NONTEMPORAL | (PREFETCH_NTA & (REST == 0))),
};

// What one store takes: a vector, or, with JOINED (elements twice as long), two of them.
#ifdef JOINED
typedef OF(JOINED) stored;
#define STORED JOINED
#else
typedef elements stored;
#define STORED element
#endif
typedef stored stored_unaligned __attribute__((aligned(sizeof(element))));

inline void put(const stored v, __global element *p, const int streamed) {
#if NONTEMPORAL
  if (streamed) {
    __builtin_nontemporal_store(v, (__global stored *)p);
    return;
  }
#endif
  VSTORE(stored, v, (__global STORED *)p);
}

// 2 * W elements in two vectors: one half after the other, or, PACKED, even and odd ones.
typedef struct {
  reals a, b;
} pair_of_vectors;

#if PACKED
// A bfloat16 in the lower half of a lane becomes a float by a shift, one in the upper half by a mask.
inline pair_of_vectors load(__global const element *p) {
  const uints v = VLOAD(uints, (__global const uint *)p);
  return (pair_of_vectors){AS(float, v << 16), AS(float, v & 0xffff0000u)};
}
#if defined(CLANG_VECTORS) && defined(PLAIN_NAN)
// Both are rounded at once, as 16-bit lanes: `stays` is the upper half of each float, `goes` the lower one. Up if `goes`
// is more than half of the last place of `stays`, or just half of it and that is odd. With AVX2 1 to 3 % faster.
typedef ushort short_lanes __attribute__((ext_vector_type(2 * W)));
typedef union {
  uints words;
  short_lanes lanes;
} halves_of_words;
inline uints narrow_both(const reals even, const reals odd) {
  const uints a = AS(uint, even), b = AS(uint, odd);
  halves_of_words stays, goes;
  stays.words = (a >> 16) | (b & 0xffff0000u);
  goes.words = (a & 0xffffu) | (b << 16);
  const short_lanes odd_bits = stays.lanes & (ushort)1;
  stays.lanes = (goes.lanes | odd_bits) > (ushort)0x8000 ? stays.lanes + (ushort)1 : stays.lanes;
  return stays.words;
}
#else
inline uints rounded(const reals v) {
  const uints w = AS(uint, v);
  return KEEP_NAN(v != v, w + (((w >> 16) & 1u) + 0x7fffu), w | 0x400000u);
}
inline uints narrow_both(const reals even, const reals odd) {
  return (rounded(even) >> 16) | (rounded(odd) & 0xffff0000u);
}
#endif
inline void store(const pair_of_vectors v, __global element *p, const int streamed) {
  put(narrow_both(v.a, v.b), p, streamed);
}
#else
inline pair_of_vectors load(__global const element *p) {
  return (pair_of_vectors){widen(VLOAD(elements, p)), widen(VLOAD(elements, p + W))};
}
inline void store(const pair_of_vectors v, __global element *p, const int streamed) {
#ifdef JOINED
  union {
    elements each[2];
    stored both;
  } u;
  u.each[0] = narrow(v.a);
  u.each[1] = narrow(v.b);
  put(u.both, p, streamed);
#else
  put(narrow(v.a), p, streamed);
  put(narrow(v.b), p + W, streamed);
#endif
}
#endif

// The first pair of a round: the one for what is left of whole rounds begins earlier.
inline int first_pair(const int slot) { return slot < ROUNDED ? slot : PAIRS - ROUND; }

// Cos and sin of a token, once for all heads, in the order in which rounds need them. A compiler may keep private memory
// in registers; global memory it has to read again after each store. [0] is for first elements of pairs, [1] for second.
typedef struct {
  turn at[2][2 * SLOTS / W];
} turns;

// Rounds of neox: the values of 2 * W pairs, those of even and odd ones apart if elements are.
inline void arrange_halves(turn *t, const token_angles *from, const int i) {
  const turn v = cos_sin(from, i), w = cos_sin(from, i + W);
  t[0] = v, t[1] = w;
  if (PACKED) {
    t[0].c.lo = v.c.even, t[0].c.hi = w.c.even, t[1].c.lo = v.c.odd, t[1].c.hi = w.c.odd;
    t[0].s.lo = v.s.even, t[0].s.hi = w.s.even, t[1].s.lo = v.s.odd, t[1].s.hi = w.s.odd;
  }
}

inline void arrange(turns *t, const token_angles *from, const int slot) {
  const int i = first_pair(slot), k = slot / W;
  if (!NEIGHBOURS) {
    arrange_halves(t->at[0] + k, from, i);
    if (FULL_TABLES)
      arrange_halves(t->at[1] + k, from, PAIRS + i);
    return;
  }
  const turn v = cos_sin(from, i), w = FULL_TABLES ? cos_sin(from, PAIRS + i) : v;
  if (PACKED) {
    t->at[0][k] = v, t->at[1][k] = w;
  } else {
    // Of a vector v of first and second elements in turn, v * (c, c, ...) + swapped v * (-s, s, ...) is the result: one
    // exchange of neighbours instead of a split into halves and back. Negation is exact, so the bits are the same.
    turn *a = t->at[0] + 2 * k, *b = a + 1;
    a->c.even = v.c.lo, a->c.odd = w.c.lo, b->c.even = v.c.hi, b->c.odd = w.c.hi;
    a->s.even = -v.s.lo, a->s.odd = w.s.lo, b->s.even = -v.s.hi, b->s.odd = w.s.hi;
  }
}

#define SWAP_2 s10
#define SWAP_4 s1032
#define SWAP_8 s10325476
#define SWAP_16 s1032547698badcfe
inline reals swapped(const reals v) { return v.PASTE(SWAP_, W); }

// First and second elements of W pairs, turned; and W / 2 pairs of neighbours.
inline reals first_turned(const reals a, const reals b, const turn t) { return a * t.c - b * t.s; }
inline reals second_turned(const reals a, const reals b, const turn t) { return a * t.s + b * t.c; }
inline reals neighbours_turned(const reals v, const turn t) { return v * t.c + swapped(v) * t.s; }

// A round: the first elements of 2 * W pairs and the second ones, or W pairs of neighbours (in `first`).
typedef struct {
  pair_of_vectors first, second;
} round_of_pairs;

inline round_of_pairs rotate(__global const element *x, const turns *all, const int slot) {
  const int i = first_pair(slot), k = slot / W;
  const turn *t = all->at[0] + k, *t2 = all->at[FULL_TABLES] + k; // of first elements, and of second ones
  round_of_pairs r;
  if (!NEIGHBOURS) {
    const pair_of_vectors v = load(x + i), w = load(x + PAIRS + i);
    r.first = (pair_of_vectors){first_turned(v.a, w.a, t[0]), first_turned(v.b, w.b, t[1])};
    r.second = (pair_of_vectors){second_turned(v.a, w.a, t2[0]), second_turned(v.b, w.b, t2[1])};
    return r;
  }
  const pair_of_vectors v = load(x + 2 * i);
  if (PACKED)
    r.first = (pair_of_vectors){first_turned(v.a, v.b, t[0]), second_turned(v.a, v.b, t2[0])};
  else
    r.first = (pair_of_vectors){neighbours_turned(v.a, t[k]), neighbours_turned(v.b, t[k + 1])};
  return r;
}

inline void keep(__global element *y, const round_of_pairs r, const int slot, const int streamed) {
  const int i = first_pair(slot);
  store(r.first, y + (NEIGHBOURS ? 2 * i : i), streamed);
  if (!NEIGHBOURS)
    store(r.second, y + PAIRS + i, streamed);
}

// How many elements ahead of a head memory is prefetched: whole heads, of about so many bytes.
inline long whole_heads(const long bytes, const long step) {
  const long size = step * (long)sizeof(element);
  return PREFETCH == 0 || size <= 0 ? 0 : (bytes < size ? 1 : bytes / size) * step;
}
// Into the second level, and from there, half as far ahead, into the first, because the buffers that fill it are few.
// Where only windows are read, the processor itself hardly prefetches, and a distance holds fewer lines.
typedef struct {
  long far, near;
} distances;
inline distances distances_of(const long step) {
  const long bytes = WINDOWS_ONLY ? (PREFETCH_NTA ? 2 : 3) * PREFETCH : PREFETCH;
  return (distances){whole_heads(bytes, step), whole_heads(bytes / 2, step)};
}

#if PREFETCH
#define FETCH(p, write, level) __builtin_prefetch((const void *)(size_t)(p), write, level)
#else
#define FETCH(p, write, level)
#endif
inline void prefetch_line(__global const element *p, const distances ahead) {
  if (PREFETCH_NTA) {
    FETCH(p + ahead.far, 0, 0);
  } else {
    FETCH(p + ahead.far, 0, 2);
    FETCH(p + ahead.near, WINDOWS_ONLY, 3);
  }
}
// Its bounds are constants, not arguments, because some drivers unroll loops before they inline functions.
INLINE void prefetch_window(__global const element *p, const distances ahead) {
  UNROLL_8 for (int k = 0; k < (PREFETCH ? 2 * PAIRS : 0); k += LINE)
    prefetch_line(p + k, ahead);
  if (WINDOWS_ONLY) // it may end in a line that no multiple of 64 bytes is in
    prefetch_line(p + 2 * PAIRS - 1, ahead);
}
inline void prefetch_lines(__global const element *p, const int length, const distances ahead) {
  for (int k = 0; k < (PREFETCH ? length : 0); k += LINE)
    prefetch_line(p + k, ahead);
}

// Copies bits, so that NaN payloads and subnormals pass untouched: by lines where any place will do.
#if defined(CLANG_VECTORS) && !NONTEMPORAL
typedef uint16 copied;
#else
typedef stored copied;
#endif
typedef copied copied_unaligned __attribute__((aligned(sizeof(element))));
inline void copy_elements(__global const element *x, __global element *y, const int first, const int last) {
  const int many = sizeof(copied) / sizeof(element);
  int k = first;
#ifdef CLANG_VECTORS
  for (; k + many <= last; k += many) {
#if NONTEMPORAL
    __builtin_nontemporal_store(*(__global const copied_unaligned *)(x + k), (__global copied *)(y + k));
#else
    *(__global copied_unaligned *)(y + k) = *(__global const copied_unaligned *)(x + k);
#endif
  }
#endif
  for (; k + W <= last; k += W)
    VSTORE(elements, VLOAD(elements, x + k), y + k);
  for (; k < last; ++k)
    y[k] = x[k];
}

INLINE void rotate_head(__global const element *x, __global element *y, const turns *t, const distances ahead) {
  __global const element *from = x + WINDOW;
  __global element *to = y + WINDOW;
  if (!INTERLEAVED)
    prefetch_window(from, ahead);
  round_of_pairs left;
  if (LEFT) // before anything is stored, which may be in the same place
    left = rotate(from, t, ROUNDED);
  UNROLL_8 for (int slot = 0; slot < ROUNDED; slot += ROUND) {
    if (INTERLEAVED)
      UNROLL_8 for (int k = 2 * slot; k < 2 * (slot + ROUND); k += LINE < 2 * ROUND ? LINE : 2 * ROUND)
        if (k % LINE == 0)
          prefetch_line(from + k, ahead);
    keep(to, rotate(from, t, slot), slot, 1);
  }
  if (LEFT)
    keep(to, left, ROUNDED, 0);
  if (COPY_REST) {
    prefetch_lines(x, WINDOW, ahead);
    prefetch_lines(from + 2 * PAIRS, REST - WINDOW, ahead);
    copy_elements(x, y, 0, WINDOW);
    copy_elements(x, y, WINDOW + 2 * PAIRS, HEAD_DIM);
  }
}

inline void rotate_heads(__global const element *x, const long x_head, __global element *y, const long y_head,
                         const int first, const int last, const turns *t) {
  const distances ahead = distances_of(x_head);
  for (int head = first; head < last; ++head)
    rotate_head(x + head * x_head, y + head * y_head, t, ahead);
}

__kernel void rope_rotate_rows(TENSOR(const element, x), TENSOR(element, y), const int heads, TENSOR(const element, x2),
                               TENSOR(element, y2), const int heads2, ANGLES, const long row_stride, const int tokens,
                               const int tokens_per_item, const int heads_per_item, const real direction) {
  // 1. Which tokens and heads this work-item rotates, and where each tensor's batch begins.
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
    // 2. The token's cos and sin.
    const token_angles source = ANGLES_OF(batch * row_stride + token);
    turns t;
    UNROLL_8 for (int slot = 0; slot < SLOTS; slot += ROUND)
      arrange(&t, &source, slot);
#if !FUSED
    // Those of the next token are read at once, so that all its heads would wait for them.
    UNROLL_8 for (int i = 0; i < PAIRS; i += 64 / (int)sizeof(real)) {
      FETCH(source.cosine + table_row + i, 0, 3);
      FETCH(source.sine + table_row + i, 0, 3);
    }
#endif

    // 3. The heads: the first tensor's, then the second's.
    rotate_heads(x + token * x_token, x_head, y + token * y_token, y_head, first, min(last, heads), &t);
    rotate_heads(x2 + token * x2_token, x2_head, y2 + token * y2_token, y2_head, max(first - heads, 0), last - heads,
                 &t);
  }
}
