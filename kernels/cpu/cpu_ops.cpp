#include "kernels/cpu/cpu_ops.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/cpu/isa.h"

namespace plumb::cpu {
namespace {

bool moves_or_generates(OpId op) {
  return (op >= OpId::index_select && op <= OpId::gather) ||
         (op >= OpId::concat && op <= OpId::roll) || (op >= OpId::fill && op <= OpId::normal);
}

// One per instruction set for every op, but for those that only move bytes; linear has three
// kernels.
std::vector<Implementation> compiled(bool use_onednn) {
  const std::vector<const Simd*> usable = usable_simds();
  std::vector<Implementation> out;
  const auto per_simd = [&](OpId op, std::string_view kernel) {
    for (const Simd* simd : compiled_simds()) {
      const bool here = std::find(usable.begin(), usable.end(), simd) != usable.end();
      const ImplName name =
          kernel.empty() ? ImplName{simd->name, {}} : ImplName{kernel, simd->name};
      out.push_back({op, name, here ? "" : "this processor lacks the instruction set"});
    }
  };
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (is_composition(op)) continue;
    if (op == OpId::copy || op == OpId::repeat_heads || op == OpId::mask_rows) {
      out.push_back({op, {"memmove", {}}});
    } else if (op == OpId::transpose || op == OpId::mask_fill || op == OpId::position_ids ||
               op == OpId::upsample_nearest2d || moves_or_generates(op)) {
      out.push_back({op, {"scalars", {}}});
    } else if (op == OpId::linear) {
      per_simd(op, "gemv");
      per_simd(op, "blocked");
      if (use_onednn) out.push_back({op, {"onednn", {}}});
    } else if (op == OpId::ssd_scan) {
      per_simd(op, "chunks");
      per_simd(op, "step");
    } else {
      per_simd(op, {});
    }
  }
  return out;
}

std::vector<const Simd*> in_order(const Simd& first) {
  std::vector<const Simd*> out = usable_simds();
  out.push_back(&first);
  std::reverse(out.begin(), out.end());
  out.erase(std::remove(out.begin() + 1, out.end(), &first), out.end());
  return out;
}

}  // namespace

CpuOps::CpuOps(Device& device, const Simd& simd, int threads, bool use_onednn)
    : DeviceOps(device, compiled(use_onednn)),
      simds_(in_order(simd)),
      simd_(&simd),
      pool_(threads),
      use_onednn_(use_onednn) {}

// Products of two 16-bit values are exact in float32, and all sums are float32. The fused ops keep
// the rounding points of their composition in registers; only sdpa rounds nothing before its
// output (on a matrix unit its weights keep 16 bits, many more than a bf16 output). linear
// chooses its tiles by the number of rows; all other ops treat each row of a batch by itself.
Contract CpuOps::contract(OpId op, DType storage) const {
  return {storage,
          storage,
          {storage == DType::f64 ? 53 : 24},
          op == OpId::sdpa ? RoundingPoints::fused : RoundingPoints::eager,
          op != OpId::linear};
}

void CpuOps::require_storage(const char* op, const Tensor& t) const {
  require<Unsupported>(is_stored(t.dtype()), op,
                       "the cpu device computes in f32, f16 and bf16, not in ", name_of(t.dtype()));
}

void CpuOps::settle_for_simd() {
  for (const Simd* simd : simds_) {
    simd_ = simd;
    if (choose(simd->name)) return;
  }
  choice().exhausted();
}

void CpuOps::settle_for_simd(std::string_view kernel) {
  if (!choose_simd(kernel)) choice().exhausted();
}

bool CpuOps::choose_simd(std::string_view kernel) {
  for (const Simd* simd : simds_) {
    simd_ = simd;
    if (choose(kernel, simd->name)) return true;
  }
  return false;
}

Format CpuOps::format(const char* op, const Tensor& t) {
  require_storage(op, t);
  settle_for_simd();
  return Format(*simd_, t.dtype());
}

}  // namespace plumb::cpu
