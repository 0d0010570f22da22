// Any plugin description: accepted as a whole, or refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/plugin/plugin_library.h"

namespace {

int run(const plumb_call*) { return PLUMB_OK; }
int one_buffer(void**, int64_t) { return PLUMB_OK; }

// Often a real name, so that what comes behind is reached, else any text, or none.
const char* name_of_op(FuzzedDataProvider& data, std::string& text) {
  if (data.ConsumeIntegralInRange(0, 9) == 0) return nullptr;
  if (data.ConsumeBool()) {
    const auto op = data.ConsumeIntegralInRange(0, plumb::kOpCount - 1);
    text = plumb::name_of(static_cast<plumb::OpId>(op));
  } else {
    text = data.ConsumeRandomLengthString(80);
  }
  return text.c_str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  const std::string name = data.ConsumeRandomLengthString(40);
  const std::string device = data.ConsumeRandomLengthString(40);
  std::array<std::string, 40> names;
  std::vector<plumb_op> ops(data.ConsumeIntegralInRange<size_t>(0, names.size()));
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i] = {name_of_op(data, names[i]),
              data.ConsumeBool() ? run : nullptr,
              {data.ConsumeIntegral<int32_t>(), data.ConsumeIntegral<int32_t>(),
               data.ConsumeIntegral<int32_t>()}};
  }
  plumb_memory memory{};
  if (data.ConsumeBool()) memory.allocate = one_buffer;
  plumb_plugin plugin{};
  plugin.version = data.ConsumeBool() ? PLUMB_PLUGIN_VERSION : data.ConsumeIntegral<int32_t>();
  plugin.name = data.ConsumeBool() ? name.c_str() : nullptr;
  plugin.device = data.ConsumeBool() ? device.c_str() : "cpu";
  plugin.memory = data.ConsumeBool() ? &memory : nullptr;
  plugin.op_count = static_cast<int32_t>(ops.size());
  plugin.ops = ops.empty() ? nullptr : ops.data();
  try {
    const plumb::PluginLibrary library(plugin, "fuzzed");
    for (int i = 0; i < plumb::kOpCount; ++i) {
      const auto op = static_cast<plumb::OpId>(i);
      if (library.op(op)) (void)library.contract(op, plumb::DType::bf16);
    }
  } catch (const plumb::BadInput&) {
  }
  return 0;
}
