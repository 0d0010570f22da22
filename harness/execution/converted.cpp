#include "harness/execution/converted.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

template <class T>
int64_t element(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<int64_t>(value);
}

int64_t load_whole(DType dtype, const char* at) {
  switch (dtype) {
    case DType::i64: return element<int64_t>(at);
    case DType::i32: return element<int32_t>(at);
    case DType::u32: return element<uint32_t>(at);
    case DType::i8: return element<int8_t>(at);
    default: return element<uint8_t>(at);
  }
}

struct WholeRange {
  int64_t least, most;
};

template <class T>
WholeRange range() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

WholeRange range_of(DType dtype) {
  switch (dtype) {
    case DType::i64: return range<int64_t>();
    case DType::i32: return range<int32_t>();
    case DType::u32: return range<uint32_t>();
    case DType::i8: return range<int8_t>();
    case DType::u8: return range<uint8_t>();
    default: return {0, 1};
  }
}

}  // namespace

Tensor converted(const Tensor& host, DType to) {
  if (host.dtype() == to) return host;
  const Tensor out = host_tensor(to, host.shape());
  const int64_t from_size = size_of(host.dtype()), to_size = size_of(to), n = host.numel();
  if (to == DType::f64) {
    load_all(host.dtype(), host.raw(), n, out.data<double>());
    return out;
  }
  std::array<double, 1024> piece{};
  for (int64_t begin = 0; begin < n; begin += std::ssize(piece)) {
    const int64_t count = std::min(n - begin, std::ssize(piece));
    load_all(host.dtype(), host.data<char>() + begin * from_size, count, piece.data());
    store_all(to, out.data<char>() + begin * to_size, count, piece.data());
  }
  return out;
}

Tensor converted_mask(const Tensor& host, DType to) {
  const Tensor out = converted(host, to);
  if (!is_floating(host.dtype()) || host.dtype() == to) return out;
  const int64_t n = host.numel();
  for (int64_t i = 0; i < n; ++i) {
    const double value = load(host.dtype(), host.data<char>() + i * size_of(host.dtype()));
    if (value == -info(host.dtype()).max) {
      store(to, out.data<char>() + i * size_of(to), -info(to).max);
    }
  }
  return out;
}

Tensor converted_whole(const Tensor& host, DType to, const std::string& where) {
  const Tensor out = host_tensor(to, host.shape());
  const WholeRange held = range_of(to);
  const int64_t from_size = size_of(host.dtype()), to_size = size_of(to);
  for (int64_t i = 0; i < host.numel(); ++i) {
    const int64_t value = load_whole(host.dtype(), host.data<char>() + i * from_size);
    if (value < held.least || value > held.most) {
      throw BadInput(text(where, " holds ", value, ", which ", name_of(to), " cannot hold"));
    }
    std::memcpy(out.data<char>() + i * to_size, &value, static_cast<size_t>(to_size));
  }
  return out;
}

}  // namespace plumb::harness
