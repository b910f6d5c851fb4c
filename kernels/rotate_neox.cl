// Stage 2 for pairs (i, i + pairs): ggml's NEOX, MROPE, IMROPE and VISION, elsewhere "half" or GPT-NeoX. The modes
// differ only in which position drives a pair, which stage 1 has settled.
#include "arithmetic.clh"
#include "storage.clh"
#include "tables.clh"

#define ROTATE(n, x, y, i)                                                                                             \
  do {                                                                                                                 \
    COS_SIN(n, i);                                                                                                     \
    const VEC(REAL, n) a = LOAD(n, (x) + (i)), b = LOAD(n, (x) + pairs + (i));                                         \
    STORE(n, a * c0 - b * s0, (y) + (i));                                                                              \
    STORE(n, a * s1 + b * c1, (y) + pairs + (i));                                                                      \
  } while (0)

#ifdef PAIRS
#if defined(STORAGE_BF16) && (PAIRS >= 2 * W || defined(NONTEMPORAL))
#define STEP (2 * W)
// A 32-bit lane holds two bfloat16: the lower becomes a float by a shift, the upper by a mask, and back likewise. So W
// lanes rotate 2W pairs, the even ones and the odd ones, and the tables are put in that order. Fewer pairs than that are
// better converted one by one than done by shorter vectors of lanes. Both halves' lines are prefetched in the order of
// their addresses, not of their use: 3 to 5 % on an EPYC (of f32 and f16 it is nothing, or a loss).
#define PREPARE                                                                                                        \
  REAL c[PAIRS] __attribute__((aligned(128)));                                                                         \
  REAL s[PAIRS] __attribute__((aligned(128)));                                                                         \
  UNROLL for (int i = 0; i < ROUNDED; i += STEP) {                                                                     \
    const VEC(REAL, W) c0 = TABLE(W, row_cosine + i), c1 = TABLE(W, row_cosine + i + W);                               \
    const VEC(REAL, W) s0 = TABLE(W, row_sine + i) * direction, s1 = TABLE(W, row_sine + i + W) * direction;           \
    *(VEC(REAL, W) *)(c + i) = (VEC(REAL, W))(c0.even, c1.even);                                                       \
    *(VEC(REAL, W) *)(c + i + W) = (VEC(REAL, W))(c0.odd, c1.odd);                                                     \
    *(VEC(REAL, W) *)(s + i) = (VEC(REAL, W))(s0.even, s1.even);                                                       \
    *(VEC(REAL, W) *)(s + i + W) = (VEC(REAL, W))(s0.odd, s1.odd);                                                     \
  }
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < ROUNDED; i += STEP) {                                                                     \
    AHEAD(x, 2 * i)                                                                                                    \
    AHEAD(x, 2 * i + STEP)                                                                                             \
    const VEC(uint, W) a = VLOAD(W, uint, (__global const uint *)((x) + i));                                           \
    const VEC(uint, W) b = VLOAD(W, uint, (__global const uint *)((x) + PAIRS + i));                                   \
    const VEC(float, W) c0 = PREPARED(c, i), c1 = PREPARED(c, i + W);                                                  \
    const VEC(float, W) s0 = PREPARED(s, i), s1 = PREPARED(s, i + W);                                                  \
    const VEC(float, W) a0 = lower(a), a1 = upper(a), b0 = lower(b), b1 = upper(b);                                    \
    VSTORE(W, uint, join(a0 * c0 - b0 * s0, a1 * c1 - b1 * s1), (TARGET uint *)((y) + i));                             \
    VSTORE(W, uint, join(a0 * s0 + b0 * c0, a1 * s1 + b1 * c1), (TARGET uint *)((y) + PAIRS + i));                     \
  }
#elif defined(TWO_AT_ONCE)
#define STEP (2 * W)
#define PREPARE PREPARE_IN_ORDER(PAIRS)
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < ROUNDED; i += STEP) {                                                                     \
    AHEAD(x, i)                                                                                                        \
    AHEAD((x) + PAIRS, i)                                                                                              \
    const VEC(REAL, W) a0 = LOAD(W, (x) + i), b0 = LOAD(W, (x) + PAIRS + i);                                           \
    const VEC(REAL, W) a1 = LOAD(W, (x) + i + W), b1 = LOAD(W, (x) + PAIRS + i + W);                                   \
    const VEC(REAL, W) c0 = PREPARED(c, i), s0 = PREPARED(s, i);                                                       \
    const VEC(REAL, W) c1 = PREPARED(c, i + W), s1 = PREPARED(s, i + W);                                               \
    STORE_TWO(a0 * c0 - b0 * s0, a1 * c1 - b1 * s1, (y) + i);                                                          \
    STORE_TWO(a0 * s0 + b0 * c0, a1 * s1 + b1 * c1, (y) + PAIRS + i);                                                  \
  }
#else
#define STEP W
#define PREPARE PREPARE_IN_ORDER(PAIRS)
#define ROTATE_PREPARED(x, y)                                                                                          \
  UNROLL for (int i = 0; i < ROUNDED; i += STEP) {                                                                     \
    AHEAD(x, i)                                                                                                        \
    AHEAD((x) + PAIRS, i)                                                                                              \
    const VEC(REAL, W) a = LOAD(W, (x) + i), b = LOAD(W, (x) + PAIRS + i);                                             \
    const VEC(REAL, W) cs = PREPARED(c, i), sn = PREPARED(s, i);                                                       \
    STORE(W, a * cs - b * sn, (y) + i);                                                                                \
    STORE(W, a * sn + b * cs, (y) + PAIRS + i);                                                                        \
  }
#endif
#define PREPARE_ONE(cosine_i, sine_i, i)                                                                               \
  c[i] = cosine_i;                                                                                                     \
  s[i] = sine_i;
#define ROTATE_SHORT(n, x, y, i)                                                                                       \
  do {                                                                                                                 \
    const VEC(REAL, n) a = LOAD(n, (x) + (i)), b = LOAD(n, (x) + PAIRS + (i));                                         \
    const VEC(REAL, n) cs = PREPARED_VECTOR(n, c, i), sn = PREPARED_VECTOR(n, s, i);                                   \
    STORE(n, a * cs - b * sn, (y) + (i));                                                                              \
    STORE(n, a * sn + b * cs, (y) + PAIRS + (i));                                                                      \
  } while (0)
#endif

#define KERNEL rope_rotate_neox
#include "rotate_body.clh"
