// Stage 1 with ggml's own angles: theta = position, then theta *= theta_scale from pair to pair in float, each product
// rounded, divided by the pair's factor, blended by YaRN's mix with one fused multiply-add, as compilers make it of
// ggml's source. cos and sin of that float are then taken exactly: its fraction of a turn comes from an integer product
// with the bits of 1/(2 pi), as long as its exponent needs. Of an angle beyond float they are NaN.
//
// Arguments as in cache_init.cl; exponent counts the multiplications behind each pair. Global size: (pairs, rows).
#include "types.clh"
#include "angles.clh"

// The first 256 bits of 1/(2 pi) behind the binary point, in 32-bit digits; two digits of zeros before them, for
// angles below 1.
__constant uint inverse_two_pi[12] = {0u,          0u,          0u,          0x28be60dbu, 0x9391054au, 0x7f09d5f4u,
                                      0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau, 0xf7aef158u, 0x6dc91b8eu};

// Quotient rounded to nearest even; the language allows `/` an error of 2.5 ulp. Both sides are normal numbers, but for a
// that has overflowed, which stays so, and an infinite b.
inline float divide(float a, float b) {
  const uint ua = as_uint(a), ub = as_uint(b);
  const int ea = (int)((ua >> 23) & 255u), eb = (int)((ub >> 23) & 255u);
  if ((ua & 0x7fffffffu) == 0u || ub == 0x3f800000u || ea == 255)
    return a;
  const ulong ma = (ua & 0x7fffffu) | 0x800000u, mb = (ub & 0x7fffffu) | 0x800000u;
  // The quotient of two 24-bit numbers with 27 bits, of which the lowest is set if any behind them is.
  const ulong n = ma << 27;
  ulong q = n / mb;
  ulong behind = q * mb != n;
  int e = ea - eb + 127;
  if (q < (1ul << 27)) {
    e -= 1;
  } else {
    behind |= q & 1ul;
    q >>= 1;
  }
  const uint sign = (ua ^ ub) & 0x80000000u, low = (uint)((q & 7ul) | behind);
  uint m = (uint)(q >> 3);
  m += low > 4u || (low == 4u && (m & 1u));
  if (e <= 0 || eb == 255)
    return as_float(sign); // below the normal numbers: less than 2^-126 radians
  if (e >= 255)
    return as_float(sign | 0x7f800000u);
  return as_float(sign | (((uint)e << 23) + (m - 0x800000u)));
}

// Sum of a and b, and what its rounding left, exactly (Knuth).
inline float two_sum(float a, float b, float *rest) {
  const float sum = a + b, part = sum - a;
  *rest = (a - (sum - part)) + (b - part);
  return sum;
}

// a * b + c rounded once, by plain operations, whose bits no device chooses: product and sums are split without error
// (Dekker, Knuth), and the lowest part is rounded to odd, after which rounding again does no harm (Boldo, Melquiond:
// Emulation of FMA and correctly rounded sums, 2008). Beyond the range of the splitting each operation is rounded.
inline float multiply_add_once(float a, float b, float c) {
  const float product = a * b;
  if (!(fabs(a) < 1e30f && fabs(b) < 1e30f && fabs(product) < 1e30f && fabs(c) < 1e30f))
    return product + c;
  const float a4 = a * 4097.0f, b4 = b * 4097.0f;
  const float a1 = a4 - (a4 - a), b1 = b4 - (b4 - b), a0 = a - a1, b0 = b - b1;
  const float lost = ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0;
  float low_rest, high_rest, error;
  const float low = two_sum(c, lost, &low_rest);
  const float high = two_sum(product, low, &high_rest);
  float rest = two_sum(low_rest, high_rest, &error);
  if (error != 0.0f && (as_uint(rest) & 1u) == 0u) // towards the error by one: its last bit becomes 1
    rest = as_float(as_uint(rest) + ((error > 0.0f) == (rest > 0.0f) ? 1u : 0xffffffffu));
  return high + rest;
}

// Fraction of a turn of a finite angle in radians.
inline ulong phase_of_radians(float theta) {
  const uint bits = as_uint(theta);
  const int exponent = (int)((bits >> 23) & 255u) - 150; // theta = mantissa * 2^exponent
  const ulong mantissa = (bits & 0x7fffffu) | 0x800000u;
  if ((bits & 0x7fffffffu) < 0x00800000u || exponent < -96)
    return 0ul; // zero, or less than 2^-70 of a turn
  // 96 bits of 1/(2 pi) from the place where its product with 2^exponent has its binary point.
  const int place = exponent + 96;
  const int digit = place >> 5, shift = place & 31;
  uint w[4];
  for (int k = 0; k < 4; ++k)
    w[k] = digit + k < 12 ? inverse_two_pi[digit + k] : 0u;
  ulong high = ((ulong)w[0] << 32) | w[1], low = ((ulong)w[2] << 32) | w[3];
  if (shift) {
    high = (high << shift) | (low >> (64 - shift));
    low = low << shift;
  }
  const ulong phase = mantissa * high + ((mantissa * (low >> 32)) >> 32);
  return (bits & 0x80000000u) ? 0ul - phase : phase;
}

__kernel void rope_cache_init_ggml(POSITIONS, const int rows, const int pairs,
                                   const float theta_scale, const float freq_scale, const float magnitude,
                                   const int yarn, __global const int *exponent, __global const float *factor,
                                   __global const float *mix, __global const uchar *axis, __global real *cosine,
                                   __global real *sine) {
  const int i = (int)get_global_id(0), row = (int)get_global_id(1);
#ifdef COUNTING // for all pairs
  float theta = (float)POSITION(row);
#else
  float theta = (float)POSITION((size_t)axis[i] * (size_t)rows + (size_t)row);
#endif
  // Intel's CPU compiler takes a loop of products by a constant apart into several chains and so changes the rounding
  // (work-groups of up to 4 items in the first axis); it does not where the factor may be another one each time.
  volatile float factor_of_step = theta_scale;
  for (int k = exponent[i]; k > 0; --k)
    theta = theta * factor_of_step;
  const float extrapolated = divide(theta, factor[i]);
  float angle = freq_scale * extrapolated;
  if (yarn)
    angle = multiply_add_once(angle, 1.0f - mix[i], extrapolated * mix[i]);
  real c, s;
  cos_sin_of_phase(phase_of_radians(angle), &c, &s);
  const size_t at = (size_t)row * (size_t)pairs + (size_t)i;
  const bool beyond = (as_uint(angle) & 0x7f800000u) == 0x7f800000u; // infinite or NaN
  const real nan = (real)as_float(0x7fc00000u);
  cosine[at] = beyond ? nan : c * (real)magnitude;
  sine[at] = beyond ? nan : s * (real)magnitude;
}
