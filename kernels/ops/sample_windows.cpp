#include "kernels/ops/sample_windows.h"

#include <algorithm>

#include "kernels/ops/window_calls.h"

namespace plumb {
namespace {

class Drawn {
 public:
  Drawn(const OpRow& row, bool several, const std::function<int(int)>& choose)
      : row_(row), several_(several), choose_(choose) {}

  void groups_of_channels() {
    out.groups = any_of({1, 2, 3});
    const int64_t channels = out.groups * any_of({1, 2, 5, 33});
    out.extents['C'] = channels;
    out.behind_batch = {channels};
    for (int axes = choose_(3); axes > 0; --axes) {
      out.behind_batch.push_back(any_of({1, 2, 7, 8, 17}));
    }
  }

  void convolution() {
    const int64_t groups = out.conv.groups = any_of({1, 2, 1, 3});
    const int64_t inputs = any_of({1, 2, 3, 9}), outputs = any_of({1, 2, 5, 17, 70});
    out.extents['C'] = groups * inputs;
    out.extents['O'] = groups * outputs;
    out.extents['D'] = is_transposed(row_.id) ? outputs : inputs;
    for (size_t axis = row_.operands.operands[0].rank == 3 ? 1 : 0; axis < 2; ++axis) taps(axis);
  }

  void resampled() {
    out.extents['C'] = any_of({1, 2, 3, 5});
    out.pool.counts_padding = choose_(2) == 0;
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t kernel = any_of({1, 2, 3, 5}), stride = any_of({1, 2, 3});
      const int64_t extent = any_of({1, 2, 5, 9, 17});
      const int64_t padding =
          std::max(std::min(any_of({0, 1, 2}), kernel / 2), (kernel - extent + 1) / 2);
      out.pool.kernel[axis] = kernel;
      out.pool.stride[axis] = stride;
      out.pool.padding[axis] = padding;
      extents(axis, extent,
              is_pool(row_.id) ? (extent + 2 * padding - kernel) / stride + 1
                               : any_of({1, 2, 7, 10, 23}));
    }
  }

  WindowSample out;

 private:
  // One of these, or the first.
  int64_t any_of(std::initializer_list<int64_t> values) {
    const int at = choose_(static_cast<int>(values.size()));
    return values.begin()[several_ ? at : 0];
  }

  void extents(size_t axis, int64_t input, int64_t output) {
    out.extents[axis == 0 ? 'H' : 'W'] = input;
    out.extents[axis == 0 ? 'P' : 'Q'] = output;
  }

  void taps(size_t axis) {
    const bool transposed = is_transposed(row_.id);
    const int64_t taps = any_of({1, 2, 3, 5}), dilation = any_of({1, 1, 2});
    const int64_t stride = any_of({1, 1, 2, 3}), reach = dilation * (taps - 1) + 1;
    const int64_t extent = transposed ? any_of({1, 2, 3, 5, 7}) : any_of({1, 3, 5, 9, 13});
    const int64_t whole = (extent - 1) * stride + reach;  // without padding, of a transposed one
    int64_t padding = any_of({0, 1, 2});
    padding = transposed ? std::min(padding, (whole - 1) / 2)
                         : std::max(padding, (reach - extent + 1) / 2);
    const int64_t added = transposed && std::max(stride, dilation) > 1 ? any_of({0, 0, 1}) : 0;
    out.conv.stride[axis] = stride;
    out.conv.padding[axis] = padding;
    out.conv.dilation[axis] = dilation;
    out.conv.output_padding[axis] = added;
    out.extents[axis == 0 ? 'K' : 'L'] = taps;
    extents(axis, extent,
            transposed ? whole - 2 * padding + added : (extent + 2 * padding - reach) / stride + 1);
  }

  const OpRow& row_;
  const bool several_;
  const std::function<int(int)>& choose_;
};

}  // namespace

WindowSample sample_windows(const OpRow& row, bool several, const std::function<int(int)>& choose) {
  Drawn drawn(row, several, choose);
  if (row.id == OpId::group_norm) drawn.groups_of_channels();
  if (is_convolution(row.id)) drawn.convolution();
  if (is_pool(row.id) || row.id == OpId::upsample_nearest2d) drawn.resampled();
  return std::move(drawn.out);
}

}  // namespace plumb
