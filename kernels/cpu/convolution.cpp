// Convolutions as products: of the weights of a group, [outputs, terms], and of what each tap takes
// for each of some results, [terms, results] (Chellapilla, Puri and Simard 2006).
//
// One unit of work is kResults results of all output channels of a group. Sums are float32, the
// bias is added before the one rounding.
#include <cstring>

#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kResults = 128;

// [outputs of all groups, terms], where the weight's memory is not that.
Tensor product_weights(Arena& arena, const ConvCall& call) {
  const Tensor& weight = call.weight;
  const int64_t inputs = call.inputs(), outputs = call.outputs();
  const int64_t taps = weight.dim(2) * weight.dim(3), all = call.out.dim(1);
  if (!call.transposed() && weight.contiguous()) return weight.view({all, call.terms()});
  const Tensor out = arena.take(weight.dtype(), {all, call.terms()});
  const int64_t bytes = size_of(weight.dtype());
  char* to = out.data<char>();
  const auto* from = weight.data<char>();
  for (int64_t i = 0; i < all * inputs * taps; ++i, to += bytes) {
    const int64_t result = i / (inputs * taps), input = i / taps % inputs;
    const int64_t first = call.transposed() ? result / outputs * inputs + input : result;
    const int64_t second = call.transposed() ? result % outputs : input;
    const int64_t offset = first * weight.stride(0) + second * weight.stride(1) +
                           i / weight.dim(3) % weight.dim(2) * weight.stride(2) + i % weight.dim(3);
    std::memcpy(to, from + offset * bytes, static_cast<size_t>(bytes));
  }
  return out;
}

// What a tap takes for the results [begin, end) of a row.
template <class T>
void take_columns(T* to, const T* row, const Windows& windows, int64_t tap, int64_t begin,
                  int64_t end) {
  const int64_t shift = tap * windows.dilation - windows.padding;
  if (windows.transposed || windows.stride != 1) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = windows.source(i, tap);
      *to++ = column < 0 ? T{0} : row[column];
    }
    return;
  }
  const int64_t first = std::clamp(-shift, begin, end);
  const int64_t last = std::clamp(windows.extent - shift, first, end);
  std::fill_n(to, first - begin, T{0});
  std::copy_n(row + first + shift, last - first, to + first - begin);
  std::fill_n(to + last - begin, end - last, T{0});
}

// Calls visit(row, begin, end, at) for the parts of rows of a plane that the results [first, last)
// are, the first of which is the at-th of them.
template <class Visit>
void for_each_part(int64_t first, int64_t last, int64_t width, Visit visit) {
  for (int64_t at = first; at < last;) {
    const int64_t begin = at % width, end = std::min(width, begin + last - at);
    visit(at / width, begin, end, at - first);
    at += end - begin;
  }
}

}  // namespace

void CpuOps::do_convolve(const ConvCall& call) {
  const Tensor &out = call.out, &x = call.x;
  const Format storage = format(call.row.name, x);
  if (out.numel() == 0) return;
  Arena::Scope scope(arena());
  const Tensor weights = product_weights(arena(), call);
  const Windows down = call.windows(0), across = call.windows(1);
  const int64_t terms = call.terms(), outputs = call.outputs(), width = out.dim(3);
  const int64_t plane = out.dim(2) * width, taps = call.weight.dim(2) * call.weight.dim(3);
  const int64_t pieces = (plane + kResults - 1) / kResults;
  const BlockedGemm blocks(*simd_, storage, outputs, kResults, terms);
  const int64_t floats = blocks.scratch_floats();
  const auto of_each = [&](DType dtype, int64_t rows, int64_t columns) {
    return arena().take(dtype, {pool_.size(), rows, columns});
  };
  const Tensor sums = of_each(DType::f32, 1, floats), taken = of_each(x.dtype(), terms, kResults);
  const Tensor made = of_each(x.dtype(), outputs, kResults);
  const RowOffsets weight_rows(weights), made_rows(made.slice(0, 0, 1));
  const auto run = [&]<class T>(T) {
    const double cost = blocks.cost() * static_cast<double>(blocks.blocks());
    pool_.for_each(x.dim(0) * call.params.groups * pieces, cost, [&](int64_t unit, int worker) {
      const int64_t first = unit % pieces * kResults, last = std::min(plane, first + kResults);
      const int64_t group = unit / pieces % call.params.groups;
      const int64_t batch = unit / pieces / call.params.groups;
      T* elements = taken.data<T>() + worker * terms * kResults;
      T* rows = made.data<T>() + worker * outputs * kResults;
      for (int64_t term = 0; term < terms; ++term) {
        const int64_t channel = group * call.inputs() + term / taps;
        const int64_t k = term % taps / call.weight.dim(3), l = term % call.weight.dim(3);
        const T* from = x.data<T>() + batch * x.stride(0) + channel * x.stride(1);
        for_each_part(first, last, width, [&](int64_t i, int64_t begin, int64_t end, int64_t at) {
          T* to = elements + term * kResults + at;
          const int64_t row = down.source(i, k);
          if (row < 0) std::fill_n(to, end - begin, T{0});
          else take_columns(to, from + row * x.stride(2), across, l, begin, end);
        });
      }
      Gemm gemm{};
      gemm.m = outputs;
      gemm.n = last - first;
      gemm.k = terms;
      gemm.a = storage.at(weights, group * outputs * terms);
      gemm.a_rows = &weight_rows;
      gemm.b = reinterpret_cast<const char*>(elements);
      gemm.b_stride = kResults;
      gemm.row_bias = call.bias.defined() ? storage.at(call.bias, group * outputs) : nullptr;
      gemm.out = reinterpret_cast<char*>(rows);
      gemm.out_rows = &made_rows;
      const BlockedGemm product(*simd_, storage, gemm.m, gemm.n, gemm.k);
      for (int64_t block = 0; block < product.blocks(); ++block) {
        product.compute(gemm, block, sums.data<float>() + worker * floats);
      }
      T* to = out.data<T>() + batch * out.stride(0) + group * outputs * out.stride(1);
      for (int64_t channel = 0; channel < outputs; ++channel) {
        for_each_part(first, last, width, [&](int64_t i, int64_t begin, int64_t end, int64_t at) {
          std::copy_n(rows + channel * kResults + at, end - begin,
                      to + channel * out.stride(1) + i * out.stride(2) + begin);
        });
      }
    });
  };
  x.dtype() == DType::f32 ? run(uint32_t{}) : run(uint16_t{});
}

}  // namespace plumb::cpu
