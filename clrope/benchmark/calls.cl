// The least work of a call: q and k of one token are rotated by given tables, some heads a work-item.
// T: float or half. INTERLEAVED: pairs (2i, 2i + 1), otherwise (i, i + D / 2).
#pragma OPENCL FP_CONTRACT OFF
#ifdef HALF
#define T half
#define LOAD(p) vload_half8(0, p)
#define STORE(v, p) vstore_half8_rte(v, 0, p)
#else
#define T float
#define LOAD(p) vload8(0, p)
#define STORE(v, p) vstore8(v, 0, p)
#endif

kernel void rotate_heads(global const T *q, global T *q_out, global const T *k, global T *k_out,
                         global const float *cosine, global const float *sine, uint q_heads, uint heads, uint each)
{
    uint first = get_global_id(0) * each;
    uint last = min(heads, first + each);
    for (uint head = first; head < last; head++) {
        bool of_q = head < q_heads;
        size_t at = (size_t)(of_q ? head : head - q_heads) * D;
        global const T *x = (of_q ? q : k) + at;
        global T *y = (of_q ? q_out : k_out) + at;
#ifdef INTERLEAVED
        for (uint i = 0; i < D; i += 8) {
            float8 v = LOAD(x + i), r;
            float4 c = vload4(0, cosine + i / 2), s = vload4(0, sine + i / 2);
            r.even = v.even * c - v.odd * s;
            r.odd = v.even * s + v.odd * c;
            STORE(r, y + i);
        }
#else
        for (uint i = 0; i < D / 2; i += 8) {
            float8 a = LOAD(x + i), b = LOAD(x + D / 2 + i);
            float8 c = vload8(0, cosine + i), s = vload8(0, sine + i);
            STORE(a * c - b * s, y + i);
            STORE(a * s + b * c, y + D / 2 + i);
        }
#endif
    }
}
