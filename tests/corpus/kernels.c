// Kernels in C for compiled.py, of float32 on the host. `way` chooses the arithmetic of a right one,
// below 10, or the fault of a wrong one.
#include <math.h>
#include <string.h>

enum { LANES = 8 };

static float narrow(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The sum of n terms, each of `step` floats after the last, times those of b.
static float dot(const float* a, const float* b, long n, long step, int way) {
  float lane[LANES] = {0}, total = 0, lost = 0;
  double wide = 0;
  switch (way) {
    case 1:  // a chain of fused multiply-adds
      for (long i = 0; i < n; ++i) total = fmaf(a[i], b[i * step], total);
      return total;
    case 2:  // compensated
      for (long i = 0; i < n; ++i) {
        volatile float y = a[i] * b[i * step] - lost;
        volatile float next = total + y, gained = next - total;
        lost = gained - y;
        total = next;
      }
      return total;
    case 3:
      for (long i = 0; i < n; ++i) wide += (double)a[i] * b[i * step];
      return (float)wide;
    case 10:  // whole vectors alone
      n = n / LANES * LANES;
      break;
    case 11:  // rounded to 16 bits after each term
      for (long i = 0; i < n; ++i) total = narrow(total + a[i] * b[i * step]);
      return total;
    case 12:  // the first term of the tail twice
      total = n % LANES ? a[n / LANES * LANES] * b[n / LANES * LANES * step] : 0;
      break;
  }
  for (long i = 0; i < n; ++i) lane[i % LANES] += a[i] * b[i * step];
  int lanes = way == 13 ? LANES - 1 : LANES;  // 13: the last lane's update is lost
  for (int i = 0; i < lanes; ++i) total += lane[i];
  return total;
}

void rms_norm(const float* x, const float* w, float* out, long rows, long n, float eps, int way) {
  float total = 0;
  for (long r = 0; r < rows; ++r) {
    const float* row = x + r * (way == 14 ? (n + 7) / 8 * 8 : n);  // 14: rows are padded to vectors
    if (way == 14 && row + n > x + rows * n) row = x;
    total = dot(row, row, n, 1, way) + (way == 15 ? total : 0);  // 15: added to that of the row before
    float factor = 1 / sqrtf(total / (way == 16 ? n + n % LANES : n) + eps);
    if (way == 17) factor = 1 / (sqrtf(total / n) + eps);
    for (long c = 0; c < n; ++c) out[r * n + c] = row[c] * factor * w[way == 18 ? c % 64 : c];
  }
}

void softmax(const float* x, float* out, long rows, long n, int way) {
  for (long r = 0; r < rows; ++r) {
    const float* row = x + r * n;
    float most = row[0], total = 0;
    if (way == 1 || way == 11) {  // in one pass; 11: the total is not rescaled
      for (long c = 0; c < n; ++c) {
        float larger = fmaxf(most, row[c]);
        total = total * (way == 11 ? 1 : expf(most - larger)) + expf(row[c] - larger);
        most = larger;
      }
    } else {
      for (long c = 0; c < n; ++c) most = fmaxf(most, row[c]);
      if (way == 13) most = row[0];  // the first value for the maximum
      for (long c = 0; c < (way == 14 ? n - n % LANES : n); ++c)
        total += way == 2 ? exp2f((row[c] - most) * 1.44269504f) : expf(row[c] - most);
    }
    if (way == 15) total = narrow(total);
    for (long c = 0; c < n; ++c) {
      float e = way == 2 ? exp2f((row[c] - most) * 1.44269504f) : expf(row[c] - most);
      out[r * n + c] = way == 16 ? narrow(e) / total : e / total;
    }
    if (way == 17) out[r * n + n - 1] = 0;
  }
}

void matmul(const float* a, const float* b, float* out, long m, long n, long k, int way) {
  memset(out, 0, sizeof(float) * m * n);
  for (long i = 0; i < m; ++i) {
    if (way == 14 && i >= m / 4 * 4) return;  // the tail of rows is not written
    for (long j = 0; j < n; ++j) {
      const float* column = way == 15 ? b + j * k : b + j;  // 15: as if b were transposed
      float total = dot(a + i * k, column, k, way == 15 ? 1 : n, way);
      if (way == 16 && j) total += out[i * n + j - 1];  // the accumulator is not cleared
      out[i * n + (way == 17 ? (j + 1) % n : j)] = total;
    }
  }
}
