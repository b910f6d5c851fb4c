// Stage 2 for pairs (i, i + pairs): ggml's NEOX, MROPE, IMROPE and VISION, elsewhere "half" or GPT-NeoX. The modes
// differ only in which position drives a pair, which stage 1 has settled.
#include "arithmetic.clh"
#include "storage.clh"
#include "rotate_rows.clh"

#define ROTATE(n, x, y, i)                                                                                             \
  do {                                                                                                                 \
    COS_SIN(n, i);                                                                                                     \
    const VEC(REAL, n) a = LOAD(n, (x) + (i)), b = LOAD(n, (x) + pairs + (i));                                         \
    STORE(n, a * c0 - b * s0, (y) + (i));                                                                              \
    STORE(n, a * s1 + b * c1, (y) + pairs + (i));                                                                      \
  } while (0)

ROTATE_KERNEL(rope_rotate_neox)
