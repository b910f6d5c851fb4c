// Stage 2 for neighbouring pairs (2i, 2i+1): ggml's NORMAL, elsewhere "interleaved" or GPT-J.
#define PAIRS_INTERLEAVED
#include "arithmetic.clh"
#include "storage.clh"
#include "rotate_rows.clh"

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

ROTATE_KERNEL(rope_rotate_normal)
