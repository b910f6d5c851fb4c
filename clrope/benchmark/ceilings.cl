// The ceilings: copying, scaling in place, and an empty kernel.
//
// W: words of 32 bits in a vector. VECTORS: read and write by pointers to vectors instead of vload and vstore.
// STREAM: the compiler has non-temporal stores. ROW, WINDOW: words of a row, and of its scaled part.
// A work-item moves `each` consecutive vectors, at most up to `vectors`.

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define UINTS PASTE(uint, W)
#define FLOATS PASTE(float, W)

#ifdef VECTORS
#define LOAD(type, k, p) (((__global const PASTE(type, W) *)(p))[k])
#define STORE(type, v, k, p) (((__global PASTE(type, W) *)(p))[k] = (v))
#else
#define LOAD(type, k, p) PASTE(vload, W)(k, p)
#define STORE(type, v, k, p) PASTE(vstore, W)(v, k, p)
#endif

__kernel void copy(__global const uint *x, __global uint *y, const ulong vectors, const ulong each) {
  const ulong first = get_global_id(0) * each, last = min(first + each, vectors);
  for (ulong k = first; k < last; ++k)
    STORE(uint, LOAD(uint, k, x), k, y);
}

#ifdef STREAM
__kernel void stream(__global const uint *x, __global uint *y, const ulong vectors, const ulong each) {
  const ulong first = get_global_id(0) * each, last = min(first + each, vectors);
  for (ulong k = first; k < last; ++k)
    __builtin_nontemporal_store(LOAD(uint, k, x), (__global UINTS *)y + k);
}
#endif

// The compiler cannot know that the factor is 1, with which nothing changes however often it is applied.
__kernel void scale(__global float *y, const float factor, const ulong vectors, const ulong each) {
  const ulong first = get_global_id(0) * each, last = min(first + each, vectors);
  for (ulong k = first; k < last; ++k)
    STORE(float, LOAD(float, k, y) * factor, k, y);
}

#ifdef ROW
// Rows need not begin where a vector may.
#ifdef VECTORS
typedef FLOATS loose __attribute__((aligned(4)));
#define LOAD_LOOSE(k, p) (((__global const loose *)(p))[k])
#define STORE_LOOSE(v, k, p) (((__global loose *)(p))[k] = (v))
#else
#define LOAD_LOOSE(k, p) LOAD(float, k, p)
#define STORE_LOOSE(v, k, p) STORE(float, v, k, p)
#endif

// The same for the first WINDOW words of each row of ROW words, as a partial rotation in place touches them.
__kernel void windows(__global float *y, const float factor, const ulong rows, const ulong each) {
  const ulong first = get_global_id(0) * each, last = min(first + each, rows);
  for (ulong r = first; r < last; ++r) {
    __global float *start = y + r * ROW;
    for (int k = 0; k < WINDOW / W; ++k)
      STORE_LOOSE(LOAD_LOOSE(k, start) * factor, k, start);
    for (int i = WINDOW / W * W; i < WINDOW; ++i)
      start[i] *= factor;
  }
}
#endif

__kernel void nothing(__global uint *y) {}
