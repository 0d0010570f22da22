// What cuBLASLt does better than kernels/gpu: matrix products on tensor cores.
#include "kernels/cuda/sdpa.h"
#include "kernels/gpu/float64_products.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

#if defined(PLUMB_CUBLASLT)
#include "kernels/cuda/cublaslt_products.h"
#else
#include "kernels/cuda/cublaslt.h"
#endif

namespace plumb::cuda {

#if defined(PLUMB_CUBLASLT)

struct GpuOps::Library {
  CublasLtProducts products;
};

namespace {

// cuBLASLt promises its algorithms for 16-byte aligned operands; the rest takes the shared kernels.
bool are_vectors(std::initializer_list<const Tensor*> operands) {
  return std::all_of(operands.begin(), operands.end(),
                     [](const Tensor* t) { return t->numel() > 0 && rows_are_vectors(*t); });
}

}  // namespace

bool GpuOps::library_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const Tensor& bias, const std::string& algorithm) {
  const Rows rows = rows_of("linear", x);
  const bool bias_fits = !bias.defined() || reinterpret_cast<uintptr_t>(bias.raw()) % 16 == 0;
  if (!cublaslt() || !rows.evenly_spaced() || !out.contiguous() || !weight.contiguous() ||
      !bias_fits || !are_vectors({&out, &x, &weight})) {
    return false;
  }
  if (!library_) library_ = std::make_shared<Library>();
  BatchedProduct product;
  product.m = rows.count;
  product.n = weight.dim(0);
  product.k = weight.dim(1);
  product.x_stride = rows.count > 1 ? rows.stride2 : x.dim(-1);
  product.w_stride = product.k;
  product.out_stride = product.n;
  product.bias = bias.defined();
  product.factors = product.dtype = out.dtype();
  product.algorithm = algorithm;
  if (!library_->products.can(product) || !choose("cublaslt")) return false;
  Arena::Scope scope(arena());
  const Tensor workspace = arena().take(DType::u8, Shape({CublasLtProducts::kWorkspace}));
  library_->products.run(product,
                         {x.raw(), weight.raw(), bias.defined() ? bias.raw() : nullptr, out.raw()},
                         workspace.raw(), stream());
  return true;
}

std::vector<std::string> GpuOps::library_algorithms(const LinearShape& shape) {
  if (!cublaslt()) return {};
  if (!library_) library_ = std::make_shared<Library>();
  BatchedProduct product;
  product.m = shape.rows;
  product.n = shape.outputs;
  product.k = product.x_stride = product.w_stride = shape.inner;
  product.out_stride = shape.outputs;
  product.bias = shape.bias;
  product.factors = product.dtype = shape.dtype;
  return library_->products.algorithms(product);
}

namespace {

// A tensor core cuts 32 products of 8-bit floats, and their sum so far, off at 2^-13 of the largest
// of them; cuBLASLt adds 128 up so, and those sums in float32. Measured on an H200, of normal
// numbers: an output's row is off by 1.3e-4 whatever its length, an element of 65,536 by 2.6e-3.
Contract float8_contract(int64_t inner) {
  constexpr int kCut = 14, kTruncations = 8;
  const auto block = static_cast<int>(std::max<int64_t>(1, inner / kTruncations));
  return {DType::f32, DType::f32, {kCut, SumRounding::toward_zero, block}, RoundingPoints::eager};
}

}  // namespace

// Query heads that share a key-value head become rows of one product where they are dense, else one
// product each; key-value heads are the batch. No epilogue of cuBLASLt is one of our functions.
bool GpuOps::library_gemm(const GemmCall& call) {
  const Tensor &out = call.out, &a = call.a, &b = call.b, &c = call.c, &bias = call.bias;
  const GemmParams& params = call.params;
  if (!cublaslt() || params.function || !are_vectors({&out, &a, &b})) return false;
  if (c.defined() && !are_vectors({&c})) return false;
  if (bias.defined() && reinterpret_cast<uintptr_t>(bias.raw()) % 16 != 0) return false;
  if (!library_) library_ = std::make_shared<Library>();
  const int64_t heads = b.dim(1), group = call.group();
  const auto dense = [](const Tensor& t) { return t.stride(1) == t.dim(2) * t.stride(2); };
  const bool folded =
      group > 1 && !params.transpose_a && dense(a) && dense(out) && (!c.defined() || dense(c));
  const int64_t apart = folded ? 1 : group;  // products of a key-value head
  BatchedProduct product;
  product.m = call.rows() * (folded ? group : 1);
  product.n = call.columns();
  product.k = call.inner();
  product.batch = heads;
  product.w_transposed = params.transpose_b;
  product.x_transposed = params.transpose_a;
  product.bias = bias.defined();
  product.x_stride = a.stride(2);
  product.w_stride = b.stride(2);
  product.out_stride = out.stride(2);
  product.x_next = group * a.stride(1);
  product.w_next = b.stride(1);
  product.out_next = group * out.stride(1);
  product.factors = a.dtype();
  product.dtype = out.dtype();
  if (c.defined()) {
    product.c_stride = c.stride(2);
    product.c_next = group * c.stride(1);
  }
  for (const Tensor* t : {&a, &b, &out, &c}) {  // rows of extent 1 may have any stride
    if (t->defined() && t->stride(2) < t->dim(3)) return false;
  }
  if (!library_->products.can(product) || !choose("cublaslt")) return false;
  Arena::Scope scope(arena());
  const Tensor workspace = arena().take(DType::u8, Shape({CublasLtProducts::kWorkspace}));
  for (int64_t i = 0; i < a.dim(0); ++i) {
    for (int64_t j = 0; j < apart; ++j) {
      const auto one = [&](const Tensor& t) -> void* {
        return t.defined() ? t.slice(0, i, i + 1).slice(1, j, t.dim(1)).raw() : nullptr;
      };
      ProductPointers at{one(a), b.slice(0, i, i + 1).raw(), bias.defined() ? bias.raw() : nullptr,
                         one(out)};
      at.alpha = params.alpha;
      at.beta = c.defined() ? params.beta : 0;
      at.c = one(c);
      library_->products.run(product, at, workspace.raw(), stream());
    }
  }
  if (is_float8(a.dtype())) ran_with(float8_contract(product.k));
  return true;
}

namespace {

class CublasFloat64 final : public Float64Library {
 public:
  void run(const WideProduct& p, void* workspace, Stream stream) override {
    BatchedProduct product;
    product.m = p.m;
    product.n = p.n;
    product.k = p.k;
    product.w_transposed = p.transposed;
    product.x_stride = p.k;
    product.w_stride = p.transposed ? p.k : p.n;
    product.out_stride = p.n;
    product.factors = product.dtype = DType::f64;
    require<DeviceError>(products_.can(product), "cublasLt", "no algorithm for a float64 product ",
                         p.m, " x ", p.k, " x ", p.n);
    products_.run(product, {p.a, p.b, nullptr, p.out}, workspace, stream);
  }
  size_t workspace_bytes() const override { return CublasLtProducts::kWorkspace; }

 private:
  CublasLtProducts products_;
};

}  // namespace

std::unique_ptr<Float64Library> open_float64_library() {
  return cublaslt() ? std::make_unique<CublasFloat64>() : nullptr;
}

// Tensor cores truncate: blocks of 16 products, as measured on an H200 (verdicts: conformance).
Accumulator GpuOps::product_accumulator(DType storage) const {
  if (storage == DType::f32 || !cublaslt()) return {24, SumRounding::nearest, 1};
  return {24, SumRounding::toward_zero, 16};
}

#else

struct GpuOps::Library {};

bool GpuOps::library_linear(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const std::string&) {
  return false;
}

std::vector<std::string> GpuOps::library_algorithms(const LinearShape&) { return {}; }

bool GpuOps::library_gemm(const GemmCall&) { return false; }

Accumulator GpuOps::product_accumulator(DType) const { return {24, SumRounding::nearest, 1}; }

std::unique_ptr<Float64Library> open_float64_library() { return nullptr; }

#endif

std::vector<Implementation> GpuOps::library_implementations() {
  std::vector<Implementation> out = sdpa_implementations();
#if defined(PLUMB_CUBLASLT)
  const std::string_view absent = cublaslt() ? "" : "libcublasLt is not on this machine";
  out.push_back({OpId::linear, {"cublaslt", {}}, absent});
  out.push_back({OpId::matmul, {"cublaslt", {}}, absent});
  out.push_back({OpId::gemm, {"cublaslt", {}}, absent});
#endif
  return out;
}

}  // namespace plumb::cuda
