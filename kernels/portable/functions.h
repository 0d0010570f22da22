// Our own functions. The standards allow a quotient 2.5 ulp, Vulkan's exp 3 + 2 |x| and its sine
// 2^-11; sums, products and fma are exact to half an ulp everywhere: these are made of them.
// `harness support --ops` measures them. The polynomials are minimax fits of this project (Lawson);
// their coefficients are written lowest power last.

FUNCTION float product_error(float a, float b, float product) {  // a b - product, exactly
  if (kFused) return FMA(a, b, -product);
  float shift = ABS(a) > 7.9e28f   ? 3.552713678800501e-15f
                : ABS(b) > 7.9e28f ? 281474976710656.0f
                                   : 1.0f;
  a *= shift;  // by 2^-48 or 2^48: 4097 of it must be finite
  b *= shift < 1.0f ? 281474976710656.0f : shift > 1.0f ? 3.552713678800501e-15f : 1.0f;
  float s = 4097.0f * a, t = 4097.0f * b;  // Dekker 1971
  float a1 = s - (s - a), b1 = t - (t - b), a2 = a - a1, b2 = b - b1;
  return ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2;
}
FUNCTION float sum_error(float a, float b, float sum) {  // a + b - sum, exactly (Knuth)
  float of_b = sum - a;
  return (a - (sum - of_b)) + (b - of_b);
}
FUNCTION float multiply_add(float a, float b, float c) {  // a b + c, rounded once or nearly so
  if (kFused) return FMA(a, b, c);
  float scale = 1.0f, product = a * b;
  if (ABS(a) < INF && ABS(b) < INF &&
      !(ABS(product) < INF)) {  // the sum may be finite all the same
    if (!(ABS(c) < INF)) return c;
    scale = 18446744073709551616.0f;  // 2^64
    if (ABS(a) > ABS(b)) {
      a *= 5.421010862427522e-20f;
    } else {
      b *= 5.421010862427522e-20f;
    }
    c *= 5.421010862427522e-20f;
    product = a * b;
  } else if (ABS(product) < 1.0e-27f &&
             ABS(c) < 1.0e-18f) {  // what its rounding left may be too small
    scale = 5.421010862427522e-20f;
    if (ABS(a) < ABS(b)) {
      a *= 18446744073709551616.0f;
    } else {
      b *= 18446744073709551616.0f;
    }
    c *= 18446744073709551616.0f;
    product = a * b;
  }
  float sum = product + c;
  float rest = sum_error(product, c, sum) + product_error(a, b, product);
  float total = sum + rest;
  if (scale < 1.0f && ABS(total) < 2.168404345e-19f) {  // subnormal: rounded to 2^-149 here, once
    float unit = 2.584939414e-26f, magic = 3.252606517e-19f;  // 2^-85, 1.5 2^-62
    float near = (total + magic) - magic, left = (total - near) + (rest - (total - sum));
    if (left > 0.5f * unit) near += unit;
    if (left < -0.5f * unit) near -= unit;
    return near * scale;
  }
  return (ABS(rest) < INF ? total : sum) * scale;
}

// 0 x. Mesa's lavapipe takes a product with the constant 0 for 0, whatever the other factor.
FUNCTION float zero_times(float x) {
  if (!(ABS(x) < INF)) return NAN_VALUE;
  return x < 0.0f ? -0.0f : 0.0f;
}
// A power of two that brings x to the middle of float's range.
FUNCTION float scale_of(float x) {
  return ABS(x) < 1.0e-15f  ? 18446744073709551616.0f
         : ABS(x) > 1.0e15f ? 5.421010862427522e-20f
                            : 1.0f;
}
FUNCTION float quotient(float a, float b) {
  float native = a / b;
  if (!(ABS(native) < INF) || !(ABS(native) >= 1.1754944e-38f)) return native;
  float of_a = scale_of(a), of_b = scale_of(b);
  a *= of_a;
  b *= of_b;
  float q = a / b, product = q * b;
  q += ((a - product) - product_error(q, b, product)) / b;
  if (of_a == of_b) return q;  // either factor alone may leave float's range
  return q * of_b *
         (of_a < 1.0f   ? 18446744073709551616.0f
          : of_a > 1.0f ? 5.421010862427522e-20f
                        : 1.0f);
}
FUNCTION float reciprocal_sqrt(float x) {
  float y = NATIVE_RSQRT(x);
  if (!(y < 1.0e17f) || !(y > 1.0e-17f)) return y;
  float t = x * y, u = t * y;  // 1 - x y^2 from exact products
  float rest = (1.0f - u) - product_error(t, y, u) - product_error(x, y, t) * y;
  return y + 0.5f * y * rest;
}
FUNCTION float square_root(float x) {
  if (x == 0.0f || x == INF) return x;
  float scale = x < 1.0e-30f ? 2.3283064365386963e-10f : x > 1.0e30f ? 4294967296.0f : 1.0f;
  if (scale != 1.0f) x *= x < 1.0f ? 18446744073709551616.0f : 5.421010862427522e-20f;  // 2^64
  float y = reciprocal_sqrt(x), root = x * y, square = root * root;
  return (root + 0.5f * y * ((x - square) - product_error(root, root, square))) * scale;
}

// n of x = n ln 2 + r, and r, |r| <= ln 2 / 2 (Cody and Waite: n times the first part is exact).
FUNCTION float nearest_power(float x) { return NEAREST(x * 1.442695041f); }
FUNCTION float rest_of_power(float x, float n) {
  return (x - n * 6.931457520e-01f) - n * 1.428606765e-06f;
}
// e^r - 1 - r.
FUNCTION float curve_of_exponential(float r) {
  float q = 1.979024382e-04f;
  q = q * r + 1.394475810e-03f;
  q = q * r + 8.333497681e-03f;
  q = q * r + 4.166629538e-02f;
  q = q * r + 1.666666567e-01f;
  q = q * r + 5.000000000e-01f;
  return r * r * q;
}
FUNCTION float power_of_2(i32 n) { return FROM_BITS(U32(n + 127) << 23); }
// factor e^(x + low), |low| much less than 1: rounded once where that is subnormal.
FUNCTION float times_exponential(float factor, float x, float low) {
  if (!(x > -130.0f)) return x != x ? x : zero_times(factor);
  if (x > 89.0f) return factor * INF;
  float n = nearest_power(x), r = rest_of_power(x, n) + low;
  i32 k = I32(n), half_k = k / 2;  // 2^k may be subnormal, or 2^128
  return factor * (1.0f + (r + curve_of_exponential(r))) * power_of_2(half_k) *
         power_of_2(k - half_k);
}
FUNCTION float exponential(float x) { return times_exponential(1.0f, x, 0.0f); }
FUNCTION float exponential_minus_1(float x) {
  if (!(x > -20.0f)) return x != x ? x : -1.0f;
  if (x > 20.0f) return exponential(x);
  float n = nearest_power(x), r = rest_of_power(x, n);
  float p = r + curve_of_exponential(r), power = power_of_2(I32(n));
  return n == 0.0f ? p : (power - 1.0f) + power * p;
}

// x = m 2^k with m in [sqrt(1/2), sqrt(2)), of a finite x > 0.
FUNCTION bool is_subnormal(float x) { return x < 1.1754944e-38f; }
FUNCTION u32 bits_above_root(float x) {  // of sqrt(1/2)
  return BITS(is_subnormal(x) ? x * 16777216.0f : x) - 0x3f3504f3u;
}
FUNCTION float power_in(float x) {  // k
  return F32(I32(bits_above_root(x)) >> 23) - (is_subnormal(x) ? 24.0f : 0.0f);
}
FUNCTION float mantissa_in(float x) {  // m
  return FROM_BITS((bits_above_root(x) & 0x7fffffu) + 0x3f3504f3u);
}
FUNCTION float logarithm(float x) {
  if (!(x > 0.0f)) return x == 0.0f ? -INF : NAN_VALUE;
  if (x == INF) return x;
  float m = mantissa_in(x), k = power_in(x);
  float f = m - 1.0f, q = 6.746640801e-02f;
  q = q * f - 1.167565212e-01f;
  q = q * f + 1.188816205e-01f;
  q = q * f - 1.240558922e-01f;
  q = q * f + 1.421955228e-01f;
  q = q * f - 1.666799635e-01f;
  q = q * f + 2.000211924e-01f;
  q = q * f - 2.500000894e-01f;
  q = q * f + 3.333331347e-01f;
  float square = f * f, head = f - 0.5f * square;
  float tail = ((f - head) - 0.5f * square) + f * square * q + k * 1.428606765e-06f;
  float large = k * 6.931457520e-01f, sum = large + head;
  return sum + (sum_error(large, head, sum) + tail);
}
FUNCTION float logarithm_of_1_plus(float x) {
  float u = 1.0f + x;
  if (u == 1.0f || x == INF) return x;
  return u > 0.0f ? logarithm(u) + (x - (u - 1.0f)) / u : logarithm(u);
}

// |a|^b of a finite a that is not 0: e^(b log|a|), with the logarithm as a sum of two floats.
FUNCTION float power_of_size(float a, float b) {
  float m = mantissa_in(a), k = power_in(a);
  // log m = 2 atanh(s), s = (m - 1) / (m + 1)
  float f = m - 1.0f, d = m + 1.0f, s = quotient(f, d), product = s * d;
  float s_low = (((f - product) - product_error(s, d, product)) - s * (m - (d - 1.0f))) / d;
  float square = s * s, square_low = product_error(s, s, square) + 2.0f * s * s_low;
  float cube = s * square, cube_low = product_error(s, square, cube) + s * square_low;
  float q = 2.358260006e-01f;
  q = q * square + 2.853728533e-01f;
  q = q * square + 4.000033438e-01f;
  float third = cube * 6.666666269e-01f;
  float third_low = product_error(cube, 6.666666269e-01f, third) + cube_low * 6.666666269e-01f;
  float large = k * 6.931457520e-01f, first = large + 2.0f * s, sum = first + third;
  float low = sum_error(large, 2.0f * s, first) + sum_error(first, third, sum);
  low += k * 1.428606765e-06f + (2.0f * s_low + (third_low + cube * (square * q)));
  float high = sum + low;
  low -= high - sum;
  float x = b * high;
  if (!(ABS(x) < 200.0f)) return x < 0.0f ? 0.0f : INF;
  return times_exponential(1.0f, x, product_error(b, high, x) + b * low);
}
FUNCTION float power(float a, float b) {
  if (b == 0.0f || a == 1.0f) return 1.0f;
  if (a != a || b != b) return a + b;
  float size = ABS(a);
  bool whole = FLOOR(b) == b, negative = BITS(a) >= 0x80000000u;
  bool odd = whole && ABS(b) < 16777216.0f && (I32(ABS(b)) & 1) == 1;
  if (a < 0.0f && !whole && size < INF) return NAN_VALUE;
  float y = 1.0f;
  if (size == 0.0f || size == INF || !(ABS(b) < 2147483648.0f)) {
    if (size != 1.0f) y = (size > 1.0f) == (b > 0.0f) ? INF : 0.0f;
  } else {
    y = power_of_size(size, b);
  }
  return negative && odd ? -y : y;
}

FUNCTION float hyperbolic_tangent(float x) {
  float a = ABS(x);
  if (!(a < 9.1f)) return x != x ? x : (x < 0.0f ? -1.0f : 1.0f);
  if (a < 0.6f) {
    float t = x * x, q = 2.225964097e-03f;
    q = q * t - 8.261759765e-03f;
    q = q * t + 2.173236571e-02f;
    q = q * t - 5.395210907e-02f;
    q = q * t + 1.333324462e-01f;
    q = q * t - 3.333333135e-01f;
    return x + x * t * q;
  }
  float y = 1.0f - quotient(2.0f, exponential(2.0f * a) + 1.0f);
  return x < 0.0f ? -y : y;
}

// factor times the normal distribution at -a, 1 <= a <= 16: e^(-a^2 / 2) t p(t - 1/2), t = 1 / (1 +
// a / 4). What roundings leave out of t, p and their product goes into the exponent.
FUNCTION float times_normal_tail(float factor, float a) {
  float d = 1.0f + 0.25f * a, t = quotient(1.0f, d), u = t - 0.5f, q = 2.547994442e-02f;
  q = q * u + 8.421055973e-03f;
  q = q * u - 5.182294920e-02f;
  q = q * u - 5.566497147e-02f;
  q = q * u + 6.030724198e-02f;
  q = q * u + 2.415859252e-01f;
  q = q * u + 3.730439544e-01f;
  q = q * u + 3.871374130e-01f;
  q = q * u + 3.039483130e-01f;
  q = q * u - 3.36e-09f;
  float p = 1.888212860e-01f + q, y = t * p, one = t * d;
  float of_t = ((1.0f - one) - product_error(t, d, one)) - t * sum_error(1.0f, 0.25f * a, d);
  // 1 + t p' / p is about 0.77 + 2.28 t.
  float low = of_t * (0.77f + 2.28f * t) + sum_error(1.888212860e-01f, q, p) / p +
              product_error(t, p, y) / y;
  float head = FROM_BITS(BITS(a) & 0xfffff000u);  // its square is exact
  return times_exponential(factor * y, -0.5f * head * head, low - 0.5f * (a - head) * (a + head));
}
FUNCTION float error_function(float x) {
  float a = ABS(x);
  if (a < 1.0f) {
    float t = x * x, q = 7.889144763e-05f;
    q = q * t - 8.020849200e-04f;
    q = q * t + 5.189536139e-03f;
    q = q * t - 2.685444430e-02f;
    q = q * t + 1.128360033e-01f;
    q = q * t - 3.761262596e-01f;
    q = q * t + 1.283791661e-01f;  // 2 / sqrt(pi) - 1
    return x + x * q;
  }
  float y = a < 4.0f ? 1.0f - times_normal_tail(2.0f, a * 1.414213562f) : 1.0f;
  return x != x ? x : (x < 0.0f ? -y : y);
}
FUNCTION float gelu(float x) {
  float a = ABS(x);
  if (a < 1.0f) {
    float t = x * x, q = -7.461109817e-06f;
    q = q * t + 1.129474840e-04f;
    q = q * t - 1.185780508e-03f;
    q = q * t + 9.973076172e-03f;
    q = q * t - 6.649031490e-02f;
    q = q * t + 3.989422917e-01f;
    return x * (0.5f + x * q);
  }
  if (!(a < 16.0f)) return x > 0.0f || x != x ? x : zero_times(x);
  return x < 0.0f ? times_normal_tail(x, a) : x * (1.0f - times_normal_tail(1.0f, a));
}

// x / (1 + e^-(z + tail)), `tail` being what the rounding of z left out.
FUNCTION float times_logistic(float x, float z, float tail) {
  if (z < -80.0f) return times_exponential(x, z, tail);  // 1 + e^-z is e^-z, which overflows
  return quotient(x, 1.0f + times_exponential(1.0f, -z, -tail));
}
FUNCTION float silu(float x) { return x == -INF ? NAN_VALUE : times_logistic(x, x, 0.0f); }
// x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
FUNCTION float gelu_tanh(float x) {
  float square = x * x, cubic = square * 0.07135481627f, inner = cubic + 1.595769122f;
  if (!(ABS(x) < 20.0f)) return x > 0.0f || x != x ? x : zero_times(x);
  // exp turns an absolute error of u into a relative one: carry what the roundings left out.
  float tail = sum_error(cubic, 1.595769122f, inner) + product_error(square, 0.07135481627f, cubic);
  tail +=
      product_error(x, x, square) * 0.07135481627f + (square * 2.398832397e-09f - 4.534068032e-08f);
  float u = x * inner;
  return times_logistic(x, u, x * tail + product_error(x, inner, u));
}

// Word i of 2 / pi: bits 32 i + 1 to 32 i + 32 behind the point.
FUNCTION u64 two_over_pi(i32 i) {
  u32 word = i == 0 ? 0xa2f9836eu : i == 1 ? 0x4e441529u : i == 2 ? 0xfc2757d1u : 0xf534ddc0u;
  if (i > 3) word = i == 4 ? 0xdb629599u : i == 5 ? 0x3c439041u : 0xfe5163abu;
  return U64(word);
}
// Sine (quarter 0) or cosine (quarter 1). In integers, 128 bits of 2 / pi times the 24 of x: what
// is left of a multiple of pi / 2 is exact.
FUNCTION float sine(float x, i32 quarter) {
  u32 bits = BITS(x) & 0x7fffffffu;
  if (bits >= 0x7f800000u) return NAN_VALUE;
  if (bits < 0x39000000u) return quarter == 0 ? x : 1.0f;  // below 2^-13
  i32 shift = I32(bits >> 23) - 150;                       // |x| = m 2^shift
  u64 m = U64((bits & 0x7fffffu) | 0x800000u);
  i32 first = shift < 34 ? 0 : (shift - 2) / 32;  // words before it make whole turns
  shift -= 32 * first;
  u64 a = m * two_over_pi(first), b = m * two_over_pi(first + 1), c = m * two_over_pi(first + 2);
  c += (m * two_over_pi(first + 3)) >> 32;
  u64 lower = (b << 32) + c, upper = a + (b >> 32) + (lower < c ? U64(1) : U64(0));  // 2^-96, 2^-32
  // In 2^-62 quarters; whole ones above 2^64 are of no interest.
  i32 left = shift + 62 - 32;
  u64 turns = left > 0 ? (upper << left) | (lower >> (64 - left)) : upper >> -left;
  i32 whole = I32((turns + (U64(1) << 61)) >> 62);  // nearest
  i64 rest = I64(turns - (U64(whole) << 62));
  // r = rest pi / 2 2^-62, and what its rounding leaves out.
  float head = F32(rest), r = head * 3.406121675e-19f,
        low = product_error(head, 3.406121675e-19f, r);
  low += F32(rest - I64(head)) * 3.406121675e-19f - head * 9.4783968e-27f;
  if (BITS(x) >= 0x80000000u) {
    r = -r;
    low = -low;
    whole = -whole;
  }
  float t = r * r, y = 0.0f;
  whole = (whole + quarter) & 3;
  if ((whole & 1) == 0) {
    y = -1.951528393e-04f;
    y = y * t + 8.332160302e-03f;
    y = y * t - 1.666665524e-01f;
    y = r + (r * t * y + low);
  } else {
    y = 2.443315680e-05f;
    y = y * t - 1.388731645e-03f;
    y = y * t + 4.166664556e-02f;
    float most = 1.0f - 0.5f * t;
    y = most + (((1.0f - most) - 0.5f * t) + (t * t * y - r * low));
  }
  return (whole & 2) != 0 ? -y : y;
}
