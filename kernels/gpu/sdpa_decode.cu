// Attention of a few query tokens over many keys, 16-bit types: bound by reading K and V.
//
// The rows of a block are up to eight (query token, head of the group) pairs that share one
// key-value head, so that grouped heads read K and V once. Its keys are one split of those that the
// mask leaves. `Lanes` neighbouring lanes read a key, 16 bytes each; they hold their eight channels
// of every row's query and output in registers. A lane group takes kAhead keys at a time and sums
// their scores by a transposing butterfly: each lane ends with one (row, key), whose weight it
// computes for all. Lane groups are added up in order; so are the splits, whichever block does it
// (sdpa_decode_splits.h): the same shape gives the same bits.
#include <string_view>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/sdpa_decode_operands.h"
#include "kernels/gpu/sdpa_decode_rows.h"
#include "kernels/gpu/sdpa_decode_splits.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using namespace decode;

constexpr int64_t kMostQueries = 16;

// Blocks: [z, split, chunk of R rows]; those that read the same keys are neighbours.
template <class T, int Wave, int Lanes, int R>
__global__ void __launch_bounds__(kThreads, kBlocksOf<R>) sdpa_decode(DecodeOperands<T> p) {
  wait_for_previous_kernel();
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  const int channel = lane % Lanes * kChannels;
  const int rows = static_cast<int>(p.rows), heads = static_cast<int>(p.group);
  const int chunks = (rows + R - 1) / R, block = static_cast<int>(block_index().x);
  const int row0 = block % chunks * R, slice = block / chunks, z = slice / p.splits;
  const int kv_heads = static_cast<int>(p.kv_heads), kv_head = z % kv_heads;
  const int64_t batch = z / kv_heads;
  const KeySplits keys = p.key_splits();
  const int split = slice % p.splits, first = keys.first + split * keys.keys_per_split;
  if (split >= keys.splits) return;
  const bool active = channel < p.head_dim;
  const int from = active ? channel : 0;
  const int own_row = row0 + Shares<Lanes, R>::row(lane);
  const int token = (own_row < rows ? own_row : rows - 1) / heads;
  KeyGroup<T, Wave, Lanes, R> group{
      p,         p.mask.key_valid ? p.mask.key_valid + batch * p.mask.valid_stride : nullptr,
      lane,      first + keys.keys_per_split < keys.last ? first + keys.keys_per_split : keys.last,
      active,    static_cast<int>(p.mask.query_offset - p.mask.key_offset + token),
      {},        {},
      -INFINITY, 0};
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = row0 + r < rows ? row0 + r : rows - 1;
    const int head = kv_head * heads + row % heads;
    const auto query = load_vector<kChannels>(p.q + batch * p.q_stride[0] + head * p.q_stride[1] +
                                              row / heads * p.q_stride[2] + from);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) group.query[r][i] = to_float(query[i]);
  }
  const int start = first + thread / Wave * (Wave / Lanes * kAheadOf<R>)+lane / Lanes;
  group.attend(p.k + batch * p.k_stride[0] + kv_head * p.k_stride[1] + from,
               p.v + batch * p.v_stride[0] + kv_head * p.v_stride[1] + from, start);
  merge_groups(p, group, row0, slice);
  if (is_last_split(p, keys, z * chunks + block % chunks)) {
    combine_splits<T, Wave, Lanes, R>(p, keys, z, row0);
  }
}

// The last block of a chunk saves a launch, but one block must read all splits while nothing else
// runs. On an H200 that pays for heads of 128 and 4096 keys (llama3-8b -1.3 us a layer, zamba2-1.2b
// -4.3), not for heads of 256 (gemma2-2b +1.2) or 32,768 keys (+1.0 of 41.7).
template <class T>
bool better_apart(const DecodeOperands<T>& p) {
  constexpr int64_t kWidestHead = 128, kMostKeys = 16384;
  const int64_t keys =
      p.slots.defined() ? p.slots.most_visible() : p.keys_as_split.last - p.keys_as_split.first;
  return p.head_dim > kWidestHead || keys > kMostKeys;
}

bool takes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask) {
  return size_of(q.dtype()) == 2 && q.dim(2) <= kMostQueries && q.dim(3) <= 256 &&
         v.dim(3) == q.dim(3) && !mask.explicit_mask.defined() && slots_fit(mask, k.dim(2)) &&
         rows_are_vectors(q) && rows_are_vectors(k) && rows_are_vectors(v);
}

// What the kernel is compiled for: head_dim up to `dim`, rows that share their reads.
struct Variant {
  int dim, rows;
  std::string_view name;
};
constexpr Variant kVariants[] = {{64, 2, "d64r2"},   {64, 4, "d64r4"},   {64, 8, "d64r8"},
                                 {128, 2, "d128r2"}, {128, 4, "d128r4"}, {128, 8, "d128r8"},
                                 {256, 2, "d256r2"}, {256, 4, "d256r4"}, {256, 8, "d256r8"}};

// The smallest that holds head_dim and all rows (or as many as possible) and may run; null: none.
const Variant* choose_variant(GpuOps& ops, int64_t head_dim, int64_t rows) {
  for (const Variant& v : kVariants) {
    const bool fits = head_dim <= v.dim && (rows <= v.rows || v.rows == kMostRows);
    if ((fits || (ops.choice().forced() && head_dim <= v.dim)) && ops.choose("decode", v.name)) {
      return &v;
    }
  }
  return nullptr;
}

// Calls f.operator()<Element, Lanes, Rows>().
template <class F>
void with_variant(DType dtype, const Variant& v, F f) {
  const auto with_rows = [&]<class T, int Lanes>() {
    if (v.rows == 2) f.template operator()<T, Lanes, 2>();
    else if (v.rows == 4) f.template operator()<T, Lanes, 4>();
    else f.template operator()<T, Lanes, kMostRows>();
  };
  const auto with_lanes = [&]<class T>() {
    if (v.dim == 64) with_rows.template operator()<T, 8>();
    else if (v.dim == 128) with_rows.template operator()<T, 16>();
    else with_rows.template operator()<T, 32>();
  };
  if (dtype == DType::bf16) with_lanes.template operator()<BFloat16>();
  else with_lanes.template operator()<Float16>();
}

}  // namespace

namespace decode {

template <class T>
void combine_apart(const DecodeOperands<T>& p, int64_t slices, Stream stream) {
  const int64_t pieces = slices * p.rows * ((p.head_dim + kCombined - 1) / kCombined);
  with_wave(stream, [&]<int Wave>() {
    launch_overlapped<sdpa_decode_combine<T, Wave>>("sdpa", {grid_for(pieces, 1)},
                                                    {kCombined * kGroups}, 0, stream, p);
  });
}
template void combine_apart(const DecodeOperands<BFloat16>&, int64_t, Stream);
template void combine_apart(const DecodeOperands<Float16>&, int64_t, Stream);

}  // namespace decode

bool GpuOps::decode_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionMask& mask, const SdpaParams& params) {
  if (!takes(q, k, v, mask)) return false;
  const Variant* variant = choose_variant(*this, q.dim(3), q.dim(1) / k.dim(1) * q.dim(2));
  if (!variant) return false;
  Arena::Scope scope(arena());
  with_variant(q.dtype(), *variant, [&]<class T, int Lanes, int R>() {
    DecodeOperands<T> p = operands<T>(out, q, k, v, mask, params);
    const int64_t slices = q.dim(0) * p.kv_heads, chunks = (p.rows + R - 1) / R;
    split(p, slices * chunks, kBlocksOf<R> * multiprocessors());
    take_partials(p, slices, arena());
    p.combined_apart = p.splits > 1 && better_apart(p);
    if (p.splits > 1 && !p.combined_apart) p.tickets = tickets(slices * chunks);
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<sdpa_decode<T, Wave, Lanes, R>>(
          "sdpa", {grid_for(slices * p.splits * chunks, 1)}, {kThreads},
          sizeof(GroupStates<Lanes, R>), stream(), p);
    });
    if (p.combined_apart) combine_apart(p, slices, stream());
  });
  return true;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
