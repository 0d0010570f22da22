// A plugin's kernel that leaves the view which is its operand, not the allocation. Good: its twin.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/plugin/plugin_device.h"
#include "tests/emu/bench.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <bool Good>
__global__ void read_view(float* out, const float* a, const float* b) {
  const int next = thread() + (Good ? 0 : 1);
  out[thread()] = a[thread()] * (b[next] > 0 ? 1.0f : 2.0f);  // fault
}

// out = a * b where b is ones.
template <bool Good>
int multiply_view(const plumb_call* call) {
  const auto data = [&](int i) { return static_cast<float*>(call->tensors[i].data); };
  launch<read_view<Good>>("read_view", {1}, {64}, 0, static_cast<Stream>(call->stream), data(0),
                          data(1), data(2));
  return PLUMB_OK;
}

template <bool Good>
bool view_read_over(int wave, uint64_t) {
  static const plumb_op ops[] = {{"mul", multiply_view<Good>, {24, 0, 0}}};
  static const plumb_plugin plugin = {PLUMB_PLUGIN_VERSION, "mine", "emu", nullptr, 1, ops};
  const auto device = replace_ops(open_device(text(detail::kChecked ? "emu-check:" : "emu:", wave)),
                                  {std::make_shared<const PluginLibrary>(plugin, "mine.so")});
  std::vector<Tensor> rows;
  for (int i = 0; i < 3; ++i) {
    const Tensor whole = device->allocate(DType::f32, {3, 64});
    const std::vector<float> ones(3 * 64, 1.0f);
    device->upload(whole, ones.data());
    rows.push_back(whole.slice(0, 1, 2));
  }
  device->ops().confine(PageEnd::right);
  try {
    device->ops().mul(rows[0], rows[1], rows[2]);
  } catch (const DeviceError& error) {
    const std::string words = error.what();
    throw DeviceError(words.substr(words.find("[read_view]")));
  }
  std::vector<float> out(64);
  device->download(out.data(), rows[0]);
  return out == std::vector<float>(64, 1.0f);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
