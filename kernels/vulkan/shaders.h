// The kernels of kernels/portable as SPIR-V, made when this was built (ci/cmake/shaders.cmake).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kernels/portable/driver.h"

namespace plumb::vulkan {

using Shader = std::span<const uint32_t>;
// Finds a kernel's shader for a storage type; empty: there is none.
using FindShader = std::function<Shader(std::string_view kernel, portable::Storage storage)>;

Shader embedded_shader(std::string_view kernel, portable::Storage storage);

// What a build without glslangValidator says.
inline constexpr std::string_view kNoShaders =
    "this build has no shaders: install glslang-tools and build again";
bool has_shaders();

}  // namespace plumb::vulkan
