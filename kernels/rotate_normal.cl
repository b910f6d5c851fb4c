// Stage 2 for neighbouring pairs (2i, 2i+1): ggml's NORMAL, elsewhere "interleaved" or GPT-J.
#define PAIRS_INTERLEAVED
#include "arithmetic.clh"
#include "storage.clh"
#include "tables.clh"

// One load of 2n elements and a split into even and odd ones: strided scalar access is several times slower.
#define ROTATE_PAIRS(n, x, y, i)                                                                                       \
  do {                                                                                                                 \
    COS_SIN(n, i);                                                                                                     \
    const VEC(REAL, DOUBLED(n)) v = LOAD(DOUBLED(n), (x) + 2 * (i));                                                   \
    VEC(REAL, DOUBLED(n)) r;                                                                                           \
    r.even = v.even * c0 - v.odd * s0;                                                                                 \
    r.odd = v.even * s1 + v.odd * c1;                                                                                  \
    STORE(DOUBLED(n), r, (y) + 2 * (i));                                                                               \
  } while (0)
#define ROTATE_ONE(x, y, i)                                                                                            \
  do {                                                                                                                 \
    COS_SIN(1, i);                                                                                                     \
    const REAL a = LOAD(1, (x) + 2 * (i)), b = LOAD(1, (x) + 2 * (i) + 1);                                             \
    STORE(1, a * c0 - b * s0, (y) + 2 * (i));                                                                          \
    STORE(1, a * s1 + b * c1, (y) + 2 * (i) + 1);                                                                      \
  } while (0)
#define ROTATE_1(x, y, i) ROTATE_ONE(x, y, i)
#define ROTATE_2(x, y, i) ROTATE_PAIRS(2, x, y, i)
#define ROTATE_4(x, y, i) ROTATE_PAIRS(4, x, y, i)
#define ROTATE_8(x, y, i) ROTATE_PAIRS(8, x, y, i)
#define ROTATE(n, x, y, i) PASTE2(ROTATE_, n)(x, y, i)

#ifdef PAIRS
#ifdef STORAGE_BF16
#define STEP W
// A 32-bit lane holds both elements of a pair: the lower becomes a float by a shift, the upper by a mask. So the tables
// are in the order of the pairs; those of the pairs left over come after them as below.
#define PREPARE PREPARE_IN_ORDER(2 * PAIRS)
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < ROUNDED; i += STEP) {                                                                     \
    AHEAD(x, 2 * i)                                                                                                    \
    const VEC(uint, W) v = VLOAD(W, uint, (__global const uint *)((x) + 2 * i));                                       \
    const VEC(float, W) cs = PREPARED(c, i), sn = PREPARED(s, i);                                                      \
    const VEC(float, W) a = lower(v), b = upper(v);                                                                    \
    VSTORE(W, uint, join(a * cs - b * sn, a * sn + b * cs), (TARGET uint *)((y) + 2 * i));                             \
  }
#else
// Of a vector v of W elements, first and second in turn, v * (c, c, ...) + swapped v * (-s, s, ...) is the result: one
// exchange of neighbours instead of a split into halves and back. Negation is exact, so the bits are those of ROTATE.
#define PREPARE                                                                                                        \
  REAL c[2 * PAIRS] __attribute__((aligned(128)));                                                                     \
  REAL s[2 * PAIRS] __attribute__((aligned(128)));                                                                     \
  UNROLL for (int i = 0; i < ROUNDED; i += HALVED(W)) {                                                                \
    const VEC(REAL, HALVED(W)) cs = TABLE(HALVED(W), row_cosine + i);                                                  \
    const VEC(REAL, HALVED(W)) sn = TABLE(HALVED(W), row_sine + i) * direction;                                        \
    VEC(REAL, W) both;                                                                                                 \
    both.even = cs;                                                                                                    \
    both.odd = cs;                                                                                                     \
    *(VEC(REAL, W) *)(c + 2 * i) = both;                                                                               \
    both.even = -sn;                                                                                                   \
    both.odd = sn;                                                                                                     \
    *(VEC(REAL, W) *)(s + 2 * i) = both;                                                                               \
  }
#ifdef TWO_AT_ONCE
#define STEP W
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < 2 * ROUNDED; i += 2 * W) {                                                                \
    AHEAD(x, i)                                                                                                        \
    const VEC(REAL, W) v = LOAD(W, (x) + i), w = LOAD(W, (x) + i + W);                                                 \
    const VEC(REAL, W) c0 = PREPARED(c, i), s0 = PREPARED(s, i);                                                       \
    const VEC(REAL, W) c1 = PREPARED(c, i + W), s1 = PREPARED(s, i + W);                                               \
    STORE_TWO(v * c0 + PASTE2(SWAPPED_, W)(v) * s0, w * c1 + PASTE2(SWAPPED_, W)(w) * s1, (y) + i);                    \
  }
#else
#define STEP HALVED(W)
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < 2 * ROUNDED; i += W) {                                                                    \
    AHEAD(x, i)                                                                                                        \
    const VEC(REAL, W) v = LOAD(W, (x) + i);                                                                           \
    const VEC(REAL, W) cs = PREPARED(c, i), sn = PREPARED(s, i);                                                       \
    STORE(W, v * cs + PASTE2(SWAPPED_, W)(v) * sn, (y) + i);                                                           \
  }
#endif
#endif
#define SWAPPED_2(v) (v).s10
#define SWAPPED_4(v) (v).s1032
#define SWAPPED_8(v) (v).s10325476
#define SWAPPED_16(v) (v).s1032547698badcfe
#define PREPARE_ONE(cosine_i, sine_i, i)                                                                               \
  c[2 * (i)] = c[2 * (i) + 1] = cosine_i;                                                                              \
  s[2 * (i)] = -(s[2 * (i) + 1] = sine_i);
#define ROTATE_SHORT(n, x, y, i)                                                                                       \
  do {                                                                                                                 \
    const VEC(REAL, DOUBLED(n)) v = LOAD(DOUBLED(n), (x) + 2 * (i));                                                   \
    const VEC(REAL, DOUBLED(n)) cs = PREPARED_VECTOR(DOUBLED(n), c, 2 * (i));                                          \
    const VEC(REAL, DOUBLED(n)) sn = PREPARED_VECTOR(DOUBLED(n), s, 2 * (i));                                          \
    STORE(DOUBLED(n), v * cs + PASTE2(SWAPPED_, DOUBLED(n))(v) * sn, (y) + 2 * (i));                                   \
  } while (0)
#endif

#define KERNEL rope_rotate_normal
#include "rotate_body.clh"
