#include "harness/io/generator.h"

#include <cmath>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int32_t kMeanOfSum = 131070;  // of four numbers in [0, 65535]

template <class T, class Convert>
void fill(const Generator& g, const Tensor& out, Convert convert) {
  const auto seed = static_cast<uint64_t>(g.seed);
  const float scale = std::ldexp(1.0f, g.exponent);
  const int64_t n = out.numel();
  T* data = out.data<T>();
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t h = splitmix64(seed, static_cast<uint64_t>(i));
    const auto sum =
        static_cast<int32_t>((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
    data[i] = convert(g.offset + static_cast<float>(sum - kMeanOfSum) * scale);
  }
}

}  // namespace

Tensor generate(const Generator& generator, DType dtype, const Shape& shape) {
  const Tensor out = host_tensor(dtype, shape);
  switch (dtype) {
    case DType::f32: fill<float>(generator, out, [](float x) { return x; }); break;
    case DType::f16: fill<uint16_t>(generator, out, f32_to_f16); break;
    case DType::bf16: fill<uint16_t>(generator, out, f32_to_bf16); break;
    default:
      throw UsageError(text("[generate] dtype ", name_of(dtype), ", expected f32, f16 or bf16"));
  }
  return out;
}

}  // namespace plumb::harness
