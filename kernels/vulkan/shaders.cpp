#include "kernels/vulkan/shaders.h"

#include <algorithm>
#include <array>

namespace plumb::vulkan {
namespace {

struct ShaderRow {
  std::string_view kernel;
  portable::Storage storage;
  Shader shader;
};

#if defined(PLUMB_SHADERS)
#include <shader_table.inc>
#else
constexpr std::array<ShaderRow, 0> kShaders;
#endif

}  // namespace

Shader embedded_shader(std::string_view kernel, portable::Storage storage) {
  const auto found = std::find_if(
      std::begin(kShaders), std::end(kShaders),
      [&](const ShaderRow& row) { return row.kernel == kernel && row.storage == storage; });
  return found == std::end(kShaders) ? Shader() : found->shader;
}

bool has_shaders() { return std::size(kShaders) > 0; }

}  // namespace plumb::vulkan
