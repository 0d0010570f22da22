// Plain float64 versions of ops with one thing to get wrong, and helpers to write others.
// Everything works on the host through raw pointers, as the memory of a device under test is host
// memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/oracle/oracle_ops.h"  // values_of, put

namespace plumb::harness::testing {

using Values = std::vector<double>;  // elements of a tensor in row-major order

// A contiguous tensor on the device of `ops`: with undefined contents, with x's, with x's after a
// change.
Tensor fresh(Ops& ops, DType dtype, const Shape& shape);
Tensor copied(Ops& ops, const Tensor& x);
Tensor changed(Ops& ops, const Tensor& x, const std::function<void(Values&)>& change);
// The same, of every element.
Tensor mapped(Ops& ops, const Tensor& x, const std::function<double(double)>& f);
// t = f(t) in place.
void edit(const Tensor& t, const std::function<void(Values&)>& change);

double truncated_to(DType dtype, double x);  // toward zero
void put_truncated(const Tensor& t, const Values& values, std::string_view name = {});
double round_if(bool rounds, DType dtype, double x);

// RMSNorm and LayerNorm.
struct NormSpec {
  enum class Eps { inside_root, after_root, in_the_sum };
  double eps = 0;
  Eps place = Eps::inside_root;
  double offset = 0;           // added to the weight
  bool subtract_mean = false;  // from the values
  bool centred_variance = false;
  bool round_normalised = false;   // R(n) before the weight
  bool absolute = false;           // mean |x| instead of the root mean square
  bool squared = false;            // divided by the mean square, no root
  int64_t dropped = 0;             // last terms missing from the sums
  double divisor = 0;              // added to the number of terms
  bool storage_sums = false;       // every product and partial sum rounded to storage
  bool round_squares = false;      // every product rounded to storage, the sum is not
  bool round_gain = false;         // offset + weight rounded to storage
  bool shared_statistics = false;  // those of the first row for all rows
  bool truncate = false;
  double bias = 1;  // times
};
void wrong_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const NormSpec& spec);

struct LinearSpec {
  int64_t dropped = 0;       // last terms of each sum
  int64_t dropped_from = 0;  // first output column that they are missing in
  double bias = 1;           // times
  bool round_before_bias = false;
  bool storage_sums = false;
  bool truncate = false;
  bool transposed = false;             // W read as [K, N], where it is square
  std::optional<DType> multiply = {};  // operands rounded to
};
void wrong_linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const LinearSpec& spec);

struct RotarySpec {
  double sine = 1;  // times
  bool round_products = true;
  bool truncate = false;
  bool first_half_only = false;      // y_(i + r/2) stays x_(i + r/2)
  bool table_by_head = false;        // row h of the table instead of row t
  bool rotate_last_columns = false;  // partial: columns D - r.. instead of 0..
};
void wrong_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                  RotaryStyle style, const RotarySpec& spec);

// f(x) as ops.h says, in float64.
double exact_activation(Activation function, double x);

struct AttentionSpec {
  enum class Cap { right, before_scale, after_mask, no_rescale };
  Cap cap = Cap::right;
  bool tiled_heads = false;           // head h uses h mod Hkv
  int64_t block_without_rescale = 0;  // keys per block of an online softmax that forgets to rescale
  int64_t uncounted = 0;              // last keys missing from the normaliser
  bool normalise = true;
  bool nan_without_keys = false;  // a row without an allowed key gives NaN
};
void wrong_sdpa(Ops& ops, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionMask& mask, const SdpaParams& params, const AttentionSpec& spec);

// Which slot q may see which slot k, as a bool tensor [B|1, 1, T, S].
using Allowed = std::function<bool(const AttentionMask&, int64_t batch, int64_t t, int64_t s)>;
Tensor mask_by(Ops& ops, const AttentionMask& mask, int64_t queries, int64_t keys,
               const Allowed& allowed);

}  // namespace plumb::harness::testing
