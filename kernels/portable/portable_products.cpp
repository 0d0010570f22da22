// Products of matrices and attention.
#include <limits>

#include "kernels/portable/portable_ops.h"

namespace plumb::portable {
namespace {

constexpr int64_t kTile = 64;  // of product.k

int64_t tiles_of(int64_t rows, int64_t columns) {
  return (rows + kTile - 1) / kTile * ((columns + kTile - 1) / kTile);
}

}  // namespace

void PortableOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const Tensor& bias) {
  if (out.numel() == 0) return;
  const Layout<2> rows("linear", x.shape(), x.rank() - 1, {strides_of(out), strides_of(x)});
  require<Unsupported>(rows.axes <= 3, "linear", "rows with ", rows.axes,
                       " separate outer strides; at most 3 are implemented: make x contiguous");
  const auto extent = [&](int axis) { return axis < rows.axes ? rows.extent[axis] : 1; };
  ProductArguments p{};
  p.to = address(out);
  p.a = address(x);
  p.b = address(weight);
  p.bias = address(bias);
  p.a_row = rows.stride[1][0], p.a_head = rows.stride[1][1], p.a_batch = rows.stride[1][2];
  p.a_inner = p.b_inner = 1;
  p.b_column = weight.stride(0);
  p.out_row = rows.stride[0][0], p.out_head = rows.stride[0][1], p.out_batch = rows.stride[0][2];
  p.rows = extent(0), p.heads = extent(1);
  p.columns = extent_of("linear", weight.dim(0));
  p.inner = extent_of("linear", weight.dim(1));
  p.group = 1;
  p.function = -1;
  p.alpha = 1;
  launch("linear", "product", storage_of("linear", x.dtype()),
         tiles_of(p.rows, p.columns) * p.heads * extent(2), p);
}

void PortableOps::do_gemm(const GemmCall& call) {
  const char* op = call.row.name;
  const Tensor &out = call.out, &a = call.a, &b = call.b, &c = call.c;
  if (out.numel() == 0) return;
  const Storage storage = storage_of(op, a.dtype());
  ProductArguments p{};
  p.to = address(out);
  p.a = address(a);
  p.b = address(b);
  p.c = call.params.beta == 0 ? 0 : address(c);
  p.bias = address(call.bias);
  p.a_batch = a.stride(0), p.a_head = a.stride(1);
  p.a_row = call.params.transpose_a ? 1 : a.stride(2);
  p.a_inner = call.params.transpose_a ? a.stride(2) : 1;
  p.b_batch = b.stride(0), p.b_head = b.stride(1);
  p.b_inner = call.params.transpose_b ? 1 : b.stride(2);
  p.b_column = call.params.transpose_b ? b.stride(2) : 1;
  p.out_batch = out.stride(0), p.out_head = out.stride(1), p.out_row = out.stride(2);
  if (p.c) p.c_batch = c.stride(0), p.c_head = c.stride(1), p.c_row = c.stride(2);
  p.rows = extent_of(op, call.rows());
  p.columns = extent_of(op, call.columns());
  p.inner = extent_of(op, call.inner());
  p.heads = extent_of(op, out.dim(1));
  p.group = extent_of(op, call.group());
  p.function = call.params.function ? static_cast<i32>(*call.params.function) : -1;
  p.alpha = static_cast<float>(call.params.alpha);
  p.beta = static_cast<float>(call.params.beta);
  launch(op, "product", storage, tiles_of(p.rows, p.columns) * out.dim(0) * out.dim(1), p);
}

void PortableOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  const Tensor repeated = mask.broadcast(x.shape());
  do_map({row_of(OpId::masked_add), Formula::add, out, x, &repeated});
}

void PortableOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  if (out.numel() == 0) return;
  const char* op = "causal_mask";
  const Tensor& given = mask.explicit_mask;
  MaskArguments p{};
  p.to = address(out);
  p.key_valid = address(mask.key_valid);
  p.explicit_bool = address(given);
  p.out_b = out.stride(0), p.out_h = out.stride(1), p.out_t = out.stride(2);
  p.valid_b = mask.key_valid.defined() ? mask.key_valid.stride(0) : 0;
  if (given.defined()) {
    p.mask_b = given.dim(0) == 1 ? 0 : given.stride(0);
    p.mask_h = given.dim(1) == 1 ? 0 : given.stride(1);
    p.mask_t = given.stride(2);
  }
  p.query_offset = mask.query_offset;
  p.key_offset = mask.key_offset;
  p.window = mask.window.value_or(0);
  p.heads = extent_of(op, out.dim(1));
  p.queries = extent_of(op, out.dim(2));
  p.keys = extent_of(op, out.dim(3));
  p.causal = mask.causal;
  p.to_storage = storage_number(op, out.dtype());
  p.excluded = mask.fully_masked == FullyMasked::zero ? -std::numeric_limits<float>::infinity()
                                                      : static_cast<float>(-info(out.dtype()).max);
  launch(op, op, Storage::f32, row_count(out), p);
}

void PortableOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionMask& mask, const SdpaParams& params) {
  if (out.numel() == 0) return;
  constexpr int64_t kMostChannels = 256;  // of sdpa.k
  const int64_t channels = std::max(q.dim(3), v.dim(3));
  require<Unsupported>(channels <= kMostChannels, "sdpa", "head_dim ", channels, " on ",
                       device().name(), ", at most ", kMostChannels);
  const Tensor& given = mask.explicit_mask;
  SdpaArguments p{};
  p.to = address(out);
  p.q = address(q), p.k = address(k), p.v = address(v);
  p.q_b = q.stride(0), p.q_h = q.stride(1), p.q_t = q.stride(2);
  p.k_b = k.stride(0), p.k_h = k.stride(1), p.k_t = k.stride(2);
  p.v_b = v.stride(0), p.v_h = v.stride(1), p.v_t = v.stride(2);
  p.out_b = out.stride(0), p.out_t = out.stride(1), p.out_h = out.stride(2);
  if (given.defined()) {
    (given.dtype() == DType::boolean ? p.explicit_bool : p.additive) = address(given);
    p.mask_b = given.dim(0) == 1 ? 0 : given.stride(0);
    p.mask_h = given.dim(1) == 1 ? 0 : given.stride(1);
    p.mask_t = given.stride(2);
    if (p.additive) p.mask_storage = storage_number("sdpa", given.dtype());
  } else {  // an explicit one replaces all of this
    p.key_valid = address(mask.key_valid);
    p.valid_b = mask.key_valid.defined() ? mask.key_valid.stride(0) : 0;
    p.window = mask.window.value_or(0);
    p.causal = mask.causal;
  }
  p.query_offset = mask.query_offset;
  p.key_offset = mask.key_offset;
  p.heads = extent_of("sdpa", q.dim(1));
  p.group = extent_of("sdpa", q.dim(1) / k.dim(1));
  p.queries = extent_of("sdpa", q.dim(2));
  p.keys = extent_of("sdpa", k.dim(2));
  p.dim = static_cast<i32>(q.dim(3));
  p.v_dim = static_cast<i32>(v.dim(3));
  p.uniform_rows = mask.fully_masked != FullyMasked::zero;
  p.scale = static_cast<float>(params.scale);
  p.softcap = static_cast<float>(params.softcap.value_or(0));
  launch("sdpa", "sdpa", storage_of("sdpa", q.dtype()), q.dim(0) * q.dim(1) * q.dim(2), p);
}

}  // namespace plumb::portable
