#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

// The kernels of each op; "vectors" are 16-byte accesses (rotary_table: of 4 elements), "scalars"
// single elements. own1 to own4: vectors of a row that a thread keeps; reread: rows too long for
// that. in_product: by the threads that make the row. m, r: rows. d: head_dim. b: bytes of an
// element. Elementwise ops with one formula have both accesses and no row here.
struct Row {
  OpId op;
  std::vector<std::string_view> kernels;
  std::vector<std::string_view> variants = {""};
};

const std::vector<Row>& rows() {
  static const std::vector<std::string_view> widths = {"vectors", "scalars"};
  static const std::vector<std::string_view> owned = {"own1", "own2", "own3", "own4", "reread"};
  static const std::vector<std::string_view> functions = {"silu", "gelu", "gelu_pytorch_tanh",
                                                          "tanh"};
  static const std::vector<Row> rows = {
      {OpId::embedding, widths},
      {OpId::rms_norm, widths, owned},
      {OpId::layer_norm, widths, owned},
      {OpId::linear, {"one_row"}},
      {OpId::linear, {"gemv"}, {"m4", "m8"}},
      {OpId::linear, {"tiles"}},
      {OpId::activation, widths, functions},
      {OpId::add, {"in_product"}},
      {OpId::scale, widths, {"multiply", "divide"}},
      {OpId::softmax, widths, owned},
      {OpId::matmul, {"tiles"}},
      {OpId::gemm, {"tiles"}},
      {OpId::masked_add, widths},
      {OpId::repeat_heads, widths, {"b2", "b4"}},
      {OpId::rotary_table, widths},
      {OpId::rotary, widths, {"half", "interleaved"}},
      {OpId::rotary, {"in_product"}, {"half"}},
      {OpId::causal_mask, widths, {"bool", "additive"}},
      {OpId::copy, widths, {"b1", "b2", "b4", "b8"}},
      {OpId::cast, {"vectors", "scalars", "numbers"}},
      {OpId::index_select, widths},
      {OpId::gather, {"scalars"}},
      {OpId::concat, widths},
      {OpId::permute, widths},
      {OpId::pad, widths},
      {OpId::flip, widths},
      {OpId::roll, widths},
      {OpId::mask_rows, {"scalars"}},
      {OpId::transpose, {"vectors", "tiles"}, {"b2", "b4"}},
      {OpId::mask_fill, widths},
      {OpId::position_ids, {"rows"}},
      {OpId::causal_conv1d, {"vectors", "channels", "in_product"}},
      {OpId::ssd_scan, {"chunks", "step"}},
      {OpId::gated_rms_norm, widths},
      {OpId::quantised_linear, {"codes", "one_row", "tiles"}},
      {OpId::gated_activation, widths, functions},
      {OpId::gated_activation, {"in_product"}},
      {OpId::add_rms_norm, widths, owned},
      {OpId::activation_backward, widths, functions},
      {OpId::gated_activation_backward, widths, functions},
      {OpId::softmax_backward, widths, owned},
      {OpId::rms_norm_backward, widths},
      {OpId::layer_norm_backward, widths},
      {OpId::rotary_backward, widths, {"half", "interleaved"}},
      {OpId::sdpa,
       {"decode"},
       {"d64r2", "d64r4", "d64r8", "d128r2", "d128r4", "d128r8", "d256r2", "d256r4", "d256r8"}},
      {OpId::sdpa, {"tiles", "split_keys"}, {"d32", "d64", "d96", "d128", "d256"}},
  };
  return rows;
}

}  // namespace

std::vector<Implementation> GpuOps::compiled() {
  std::vector<Implementation> out = library_implementations();
  const auto add = [&](const Row& row) {
    for (std::string_view kernel : row.kernels) {
      for (std::string_view variant : row.variants) out.push_back({row.op, {kernel, variant}});
    }
  };
  for (const Row& row : rows()) add(row);
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (has_one_formula(op)) add({op, {"vectors", "scalars"}});
  }
  return out;
}

unsigned* GpuOps::tickets(int64_t count) {
  require(count <= kTickets * multiprocessors_, "tickets", count, " are asked for, there are ",
          kTickets * multiprocessors_);
  // An emulated launch may end half way and leave some.
  if constexpr (kExactMemory) {
    memory_fill(tickets_, 0, static_cast<size_t>(count) * sizeof(unsigned), stream());
  }
  return tickets_;
}

Contract GpuOps::contract(OpId op, DType storage) const {
  Contract out{storage, storage, {24, SumRounding::nearest, 1}, RoundingPoints::eager};
  if (op == OpId::linear || op == OpId::matmul || op == OpId::gemm)
    out.accumulator = product_accumulator(storage);
  if (storage == DType::f64) out.accumulator = {53};
  if (op == OpId::sdpa) out.points = RoundingPoints::fused;
  // The number of rows decides how reductions are shared among blocks, how norms and softmax cut a
  // row (row_slice.h), products their tiles, and attention its keys.
  out.row_bits = row_of(op).sums.empty() && !row_of(op).reduction;
  return out;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
