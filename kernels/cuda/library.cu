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
                            const Tensor& bias) {
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
  product.dtype = out.dtype();
  if (!library_->products.can(product) || !choose("cublaslt")) return false;
  Arena::Scope scope(arena());
  const Tensor workspace = arena().take(DType::u8, Shape({CublasLtProducts::kWorkspace}));
  library_->products.run(product,
                         {x.raw(), weight.raw(), bias.defined() ? bias.raw() : nullptr, out.raw()},
                         workspace.raw(), stream());
  return true;
}

// Query heads that share a key-value head become rows of one product where they are dense, else one
// product each; key-value heads are the batch.
bool GpuOps::library_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  if (!cublaslt() || !are_vectors({&out, &a, &b})) return false;
  if (!library_) library_ = std::make_shared<Library>();
  const int64_t heads = b.dim(1), group = a.dim(1) / heads;
  const auto dense = [&](const Tensor& t) { return t.stride(1) == t.dim(2) * t.stride(2); };
  const bool folded = dense(a) && dense(out);
  const int64_t apart = folded ? 1 : group;  // products of a key-value head
  BatchedProduct product;
  product.m = a.dim(2) * (folded ? group : 1);
  product.n = out.dim(3);
  product.k = a.dim(3);
  product.batch = heads;
  product.w_transposed = transpose_b;
  product.x_stride = a.stride(2);
  product.w_stride = b.stride(2);
  product.out_stride = out.stride(2);
  product.x_next = group * a.stride(1);
  product.w_next = b.stride(1);
  product.out_next = group * out.stride(1);
  product.dtype = out.dtype();
  const int64_t widths[3][2] = {{product.x_stride, product.k},
                                {product.w_stride, transpose_b ? product.k : product.n},
                                {product.out_stride, product.n}};
  for (const auto& [stride, width] : widths) {
    if (stride < width) return false;  // rows of extent 1 may have any stride
  }
  if (!library_->products.can(product) || !choose("cublaslt")) return false;
  Arena::Scope scope(arena());
  const Tensor workspace = arena().take(DType::u8, Shape({CublasLtProducts::kWorkspace}));
  for (int64_t i = 0; i < a.dim(0); ++i) {
    for (int64_t j = 0; j < apart; ++j) {
      const Tensor x = a.slice(0, i, i + 1).slice(1, j, a.dim(1));
      const Tensor y = out.slice(0, i, i + 1).slice(1, j, a.dim(1));
      library_->products.run(product, {x.raw(), b.slice(0, i, i + 1).raw(), nullptr, y.raw()},
                             workspace.raw(), stream());
    }
  }
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
    product.dtype = DType::f64;
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

bool GpuOps::library_linear(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}

bool GpuOps::library_matmul(const Tensor&, const Tensor&, const Tensor&, bool) { return false; }

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
