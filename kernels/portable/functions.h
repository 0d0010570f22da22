// Our own functions. The standards allow a quotient 2.5 ulp, Vulkan's exp 3 + 2 |x| and its sine
// 2^-11; sums, products and fma are exact to half an ulp everywhere: these are made of them.

FUNCTION float product_error(float a, float b, float product) {  // a b - product, exactly
  if (kFused) return FMA(a, b, -product);
  float s = 4097.0f * a, t = 4097.0f * b;  // Dekker 1971
  float a1 = s - (s - a), b1 = t - (t - b), a2 = a - a1, b2 = b - b1;
  return ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2;
}
FUNCTION float quotient(float a, float b) {
  float q = a / b;
  if (!(ABS(q) < 1.0e37f) || !(ABS(q) > 1.0e-30f)) return q;
  float product = q * b;
  return q + ((a - product) - product_error(q, b, product)) / b;
}
FUNCTION float reciprocal_sqrt(float x) {
  float y = NATIVE_RSQRT(x);
  if (!(y < 1.0e18f) || !(y > 1.0e-18f)) return y;
  float t = x * y, u = t * y;  // 1 - x y^2 from exact products
  float rest = (1.0f - u) - product_error(t, y, u) - product_error(x, y, t) * y;
  return y + 0.5f * y * rest;
}
FUNCTION float exponential(float x) {  // Cody and Waite; below one ulp
  if (!(x > -104.0f)) return x != x ? x : 0.0f;
  if (x > 88.8f) return INF;
  float n = NEAREST(x * 1.44269504f);
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // n * 0.693359375 is exact
  float e = 1.9875691500e-4f;  // Cephes
  e = e * r + 1.3981999507e-3f;
  e = e * r + 8.3334519073e-3f;
  e = e * r + 4.1665795894e-2f;
  e = e * r + 1.6666665459e-1f;
  e = e * r + 5.0000001201e-1f;
  e = 1.0f + (r + r * r * e);
  i32 k = I32(n), half_k = k / 2;  // 2^k may be subnormal, or 2^128
  return e * FROM_BITS(U32(half_k + 127) << 23) * FROM_BITS(U32(k - half_k + 127) << 23);
}

FUNCTION float hyperbolic_tangent(float x) {
  float a = ABS(x);
  if (!(a < 9.1f)) return x != x ? x : (x < 0.0f ? -1.0f : 1.0f);
  if (a < 0.625f) {  // Cephes
    float t = x * x, y = -5.70498872745e-3f;
    y = y * t + 2.06390887954e-2f;
    y = y * t - 5.37397155531e-2f;
    y = y * t + 1.33314422036e-1f;
    y = y * t - 3.33332819422e-1f;
    return x + x * t * y;
  }
  float y = 1.0f - quotient(2.0f, exponential(2.0f * a) + 1.0f);
  return x < 0.0f ? -y : y;
}
// x / (1 + e^-(z + tail)), `tail` being what the rounding of z left out.
FUNCTION float logistic_times(float x, float z, float tail) {
  if (z < -87.0f) return x * exponential(z);  // 1 + e^-z overflows before x e^z underflows
  return quotient(x, 1.0f + exponential(-z) * (1.0f - tail));
}
// erfc(z) for z >= 0, relative error 2^-22 (Chebyshev: Press et al., Numerical Recipes, 6.2.2).
FUNCTION float complementary_error(float z) {
  float t = quotient(1.0f, 1.0f + 0.5f * z);
  float y = 0.17087277f;
  y = y * t - 0.82215223f;
  y = y * t + 1.48851587f;
  y = y * t - 1.13520398f;
  y = y * t + 0.27886807f;
  y = y * t - 0.18628806f;
  y = y * t + 0.09678418f;
  y = y * t + 0.37409196f;
  y = y * t + 1.00002368f;
  y = y * t - 1.26551223f;
  float head = FROM_BITS(BITS(z) & 0xfffff000u), tail = z - head;  // head^2 is exact
  return t * exponential(-head * head) * exponential(y - tail * (z + head));
}
#define SILU 0
#define GELU 1
#define GELU_TANH 2
FUNCTION float activate(float x, i32 f) {
  if (f == SILU) return logistic_times(x, x, 0.0f);
  if (f == GELU) {
    float e = complementary_error(ABS(x) * 0.70710678f);
    return x < 0.0f ? 0.5f * x * e : 0.5f * x * (2.0f - e);
  }
  if (f == GELU_TANH) {
    float square = x * x, u = x * (1.59576912f + 0.07135481f * square);
    if (!(ABS(x) < 20.0f)) return logistic_times(x, u, 0.0f);
    // exp turns an absolute error of u into a relative one: carry what the roundings left out.
    float cubic = square * 0.07135481f, inner = cubic + 1.59576912f;
    float tail = (cubic - (inner - 1.59576912f)) + product_error(square, 0.07135481f, cubic);
    tail += product_error(x, x, square) * 0.07135481f + square * 2.398832397e-9f - 4.534068e-8f;
    u = x * inner;
    return logistic_times(x, u, x * tail + product_error(x, inner, u));
  }
  return hyperbolic_tangent(x);
}
// Sine (quarter 0) or cosine (quarter 1) of |x| below 2^30. 2 / pi in integers, 96 bits of it, times
// the 24 of x: what is left of a multiple of pi / 2 is exact.
FUNCTION float sine(float x, i32 quarter) {
  u32 bits = BITS(x) & 0x7fffffffu;
  if (bits >= 0x4e800000u) return FROM_BITS(0x7fc00000u);
  i32 shift = I32(bits >> 23) - 150;  // |x| = m 2^shift
  u64 m = U64((bits & 0x7fffffu) | 0x800000u), turns = U64(0);  // in 2^-62 quarters
  if (bits < 0x39000000u) return quarter == 0 ? x : 1.0f;  // below 2^-13
  u64 high = U64(0xa2f9836eu), middle = U64(0x4e441529u), low = U64(0xfc2757d1u);  // 2 / pi 2^96
  // m (2 / pi) 2^shift 2^62, whole quarters above 2^64 being of no interest
  u64 a = m * high, b = m * middle, c = m * low;
  u64 lower = (b << 32) + c, upper = a + (b >> 32) + (lower < c ? U64(1) : U64(0));  // 2^-96
  i32 left = shift + 62 - 32;  // of `upper`, whose unit is 2^-32
  turns = left >= 0 ? (upper << left) | (left > 0 ? lower >> (64 - left) : U64(0)) : upper >> -left;
  i32 whole = I32((turns + (U64(1) << 61)) >> 62);  // nearest
  i64 rest = I64(turns - (U64(whole) << 62));
  float r = F32(rest) * 3.40612158e-19f, t = r * r;  // pi / 2 2^-62
  if (BITS(x) >= 0x80000000u) r = -r, whole = -whole;
  whole = (whole + quarter) & 3;
  float y = 0.0f;
  if ((whole & 1) == 0) {
    y = -1.9515295891e-4f;  // Cephes
    y = y * t + 8.3321608736e-3f;
    y = y * t - 1.6666654611e-1f;
    y = r + r * t * y;
  } else {
    y = 2.443315711809948e-5f;
    y = y * t - 1.388731625493765e-3f;
    y = y * t + 4.166664568298827e-2f;
    y = 1.0f - 0.5f * t + t * t * y;
  }
  return (whole & 2) != 0 ? -y : y;
}

