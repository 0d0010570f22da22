// A shader with the arithmetic that its source says. Without NoContraction, Vulkan lets a driver
// fuse, reorder and replace float operations ("Precision and Operation of SPIR-V Instructions":
// AllowContract, AllowReassoc, AllowRecip and AllowTransform are assumed). GLSL's `precise` would
// have to be on every variable, so it is the host that decorates every operation.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace plumb::vulkan {

// What a device offers to keep in float32; it may well keep what it does not promise.
struct KeptFloats {
  bool infinities = false;  // and NaN, and the sign of zero
  bool subnormals = false;
};

// The module of `kernel` with NoContraction on every float operation, and with the modes that the
// device offers. Throws DeviceError for one that is damaged, at which a driver might crash:
// "[vulkan] rms_norm: its shader is damaged (word 200 of 2910): build again".
std::vector<uint32_t> exact_spirv(std::string_view kernel, std::span<const uint32_t> module,
                                  KeptFloats kept);

// Whether the module reads or writes elements of 8 or 16 bits; exact_spirv() has taken it.
bool has_small_elements(std::span<const uint32_t> module);

}  // namespace plumb::vulkan
