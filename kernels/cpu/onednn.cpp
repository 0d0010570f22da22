// The only file that knows oneDNN, versions 2 and 3.
#include "kernels/cpu/onednn.h"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/core/error.h"

namespace plumb::cpu::onednn {
namespace {

// oneDNN splits a product among the calling thread's OpenMP team; a team of one keeps the order of
// its sums.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

bool runs(dnnl::cpu_isa isa) {  // the values are sets of bits
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

dnnl::matmul matmul_of(const dnnl::engine& engine, const dnnl::memory::desc& a,
                       const dnnl::memory::desc& b, const dnnl::memory::desc& c) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine, a, b, c));
#else
  return dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine));
#endif
}

void bf16_product(int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b,
                  int64_t ldb, float* c, int64_t ldc) {
  using Memory = dnnl::memory;
  using Strides = Memory::dims;
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  const Memory::desc a_desc({m, k}, Memory::data_type::bf16, Strides{lda, 1});
  const Memory::desc b_desc({k, n}, Memory::data_type::bf16, Strides{1, ldb});
  const Memory::desc c_desc({m, n}, Memory::data_type::f32, Strides{ldc, 1});
  // Creating it again is a look-up in oneDNN's own cache.
  const dnnl::matmul matmul = matmul_of(engine, a_desc, b_desc, c_desc);
  matmul.execute(stream, {{DNNL_ARG_SRC, Memory(a_desc, engine, const_cast<void*>(a))},
                          {DNNL_ARG_WEIGHTS, Memory(b_desc, engine, const_cast<void*>(b))},
                          {DNNL_ARG_DST, Memory(c_desc, engine, c)}});
  stream.wait();
}

}  // namespace

bool prepare(std::string_view instruction_set) {
  if (instruction_set == "baseline") return false;
  // Refused once oneDNN has run something; then it keeps what it had.
  if (instruction_set == "avx2") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
  return true;
}

std::string version() {
  const dnnl::version_t& v = *dnnl::version();
  return text(v.major, '.', v.minor, '.', v.patch);
}

bool multiplies(DType dtype) {
  static const bool bf16 = runs(dnnl::cpu_isa::avx512_core_bf16);
  return dtype == DType::f32 || (dtype == DType::bf16 && bf16);
}

bool has_matrix_unit() {
  static const bool amx = runs(dnnl::cpu_isa::avx512_core_amx);
  return amx;
}

void gemm(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b,
          int64_t ldb, float* c, int64_t ldc) {
  const OneThread guard;
  try {
    if (dtype == DType::bf16) return bf16_product(m, n, k, a, lda, b, ldb, c, ldc);
    const auto status = dnnl::sgemm('N', 'T', m, n, k, 1.0f, static_cast<const float*>(a), lda,
                                    static_cast<const float*>(b), ldb, 0.0f, c, ldc);
    require<DeviceError>(status == dnnl::status::success, "linear",
                         "oneDNN's sgemm failed, status ", static_cast<int>(status));
  } catch (const dnnl::error& error) {
    throw DeviceError(text("[linear] oneDNN: ", error.what()));
  }
}

}  // namespace plumb::cpu::onednn
