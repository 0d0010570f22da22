// Every float operation of a shader is decorated; what is damaged is refused.
#include "kernels/vulkan/exact_spirv.h"

#include <map>
#include <set>

#include "tests/vulkan/vulkan_devices.h"

namespace plumb::vulkan {
namespace {

using Words = std::vector<uint32_t>;

Words probe_shader() {
  const Shader shader = embedded_shader("probe", portable::Storage::f32);
  return {shader.begin(), shader.end()};
}

// The operands of every instruction with this number.
std::vector<Words> instructions(const Words& module, uint32_t opcode) {
  std::vector<Words> out;
  for (size_t at = 5; at < module.size(); at += module[at] >> 16) {
    const auto first = module.begin() + static_cast<std::ptrdiff_t>(at);
    if ((module[at] & 0xffff) == opcode) out.emplace_back(first + 1, first + (module[at] >> 16));
  }
  return out;
}

// A module of two functions with one sum, in the order of sections that the specification asks for.
Words small_module() {
  Words out = {0x07230203, 0x00010500, 0, 20, 0};
  const auto add = [&](uint32_t opcode, const Words& operands) {
    out.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | opcode);
    out.insert(out.end(), operands.begin(), operands.end());
  };
  add(17, {1});                    // OpCapability Shader
  add(14, {0, 1});                 // OpMemoryModel
  add(15, {5, 4, 0x6e69616d, 0});  // OpEntryPoint GLCompute %4 "main"
  add(16, {4, 17, 1, 1, 1});       // OpExecutionMode %4 LocalSize
  add(71, {9, 24});                // OpDecorate
  add(19, {2});                    // OpTypeVoid
  add(33, {3, 2});                 // OpTypeFunction
  add(22, {6, 32});                // OpTypeFloat
  add(43, {6, 7, 0});              // OpConstant
  add(54, {2, 4, 0, 3});           // OpFunction %4
  add(248, {5});                   // OpLabel
  add(129, {6, 8, 7, 7});          // OpFAdd
  add(57, {2, 10, 11});            // OpFunctionCall %11
  add(253, {});                    // OpReturn
  add(56, {});                     // OpFunctionEnd
  add(54, {2, 11, 0, 3});          // OpFunction %11
  add(248, {12});                  // OpLabel
  add(253, {});                    // OpReturn
  add(56, {});                     // OpFunctionEnd
  return out;
}

std::string refusal(const Words& module) {
  return error_of([&] { exact_spirv("rms_norm", module, {true, true}); });
}
std::string damaged(size_t at, size_t of) {
  return text("[vulkan] rms_norm: its shader is damaged (word ", at, " of ", of, "): build again");
}

TEST_CASE("SPIR-V: NoContraction is on every float operation, once") {
  Words module = small_module();
  if (has_shaders()) module = probe_shader();
  const Words out = exact_spirv("probe", module, {false, false});
  std::map<uint32_t, int> decorated;
  for (const Words& operands : instructions(out, 71)) {
    if (operands[1] == 42) ++decorated[operands[0]];
  }
  size_t operations = 0;
  for (const uint32_t opcode : {127u, 129u, 131u, 133u, 136u, 140u, 141u, 142u, 148u}) {
    for (const Words& operands : instructions(out, opcode)) {
      REQUIRE(decorated[operands[1]] == 1);
      ++operations;
    }
  }
  REQUIRE(operations > 0);
  const Words again = exact_spirv("probe", out, {false, false});
  REQUIRE(again == out);
}

TEST_CASE("SPIR-V: what a device promises to keep is asked for") {
  const auto modes = [](KeptFloats kept) {
    const Words out = exact_spirv("probe", small_module(), kept);
    std::set<uint32_t> modes, capabilities;
    for (const Words& operands : instructions(out, 16)) modes.insert(operands[1]);
    for (const Words& operands : instructions(out, 17)) capabilities.insert(operands[0]);
    return std::pair(modes, capabilities);
  };
  using Sets = std::pair<std::set<uint32_t>, std::set<uint32_t>>;
  REQUIRE(modes({false, false}) == Sets({17}, {1}));
  REQUIRE(modes({true, false}) == Sets({17, 4461}, {1, 4466}));
  REQUIRE(modes({true, true}) == Sets({17, 4461, 4459}, {1, 4466, 4464}));
}

TEST_CASE("SPIR-V: the header of a damaged module") {
  const Words whole = small_module();
  REQUIRE(refusal(whole).empty());
  REQUIRE(refusal({}) == damaged(0, 0));
  Words module = whole;
  module[0] = 0x03022307;  // of a machine with the other order of bytes
  REQUIRE(refusal(module) == damaged(0, whole.size()));
  module = whole;
  module[1] = 0x00010000;
  REQUIRE(refusal(module) == damaged(1, whole.size()));
}

TEST_CASE("SPIR-V: a module that was cut off anywhere") {
  const Words whole = small_module();
  for (size_t words = 0; words < whole.size(); ++words) {
    INFO(words);
    const Words part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(words));
    REQUIRE_THAT(refusal(part), Catch::Contains("its shader is damaged (word ") &&
                                    Catch::Contains(text(" of ", words, "): build again")));
  }
}

TEST_CASE("SPIR-V: lengths and numbers that cannot be") {
  const Words whole = small_module();
  const auto at = [&](uint32_t opcode) {
    size_t out = 5;
    while ((whole[out] & 0xffff) != opcode) out += whole[out] >> 16;
    return out;
  };
  const auto with = [&](size_t word, uint32_t value) {
    Words module = whole;
    module[word] = value;
    return refusal(module);
  };
  const size_t sum = at(129), call = at(57), entry = at(15);
  REQUIRE(with(sum, 129) == damaged(sum, whole.size()));                  // no words
  REQUIRE(with(sum, 0xffffu << 16 | 129) == damaged(sum, whole.size()));  // too many
  REQUIRE(with(sum + 2, 20) == damaged(sum + 2, whole.size()));           // beyond the bound
  REQUIRE(with(sum + 2, 0) == damaged(sum + 2, whole.size()));
  REQUIRE(with(call + 3, 12) == damaged(call, whole.size()));  // calls what is no function
  REQUIRE(with(entry + 2, 11).empty());                        // another function
  REQUIRE(with(entry + 2, 12) == damaged(entry, whole.size()));
}

TEST_CASE("SPIR-V: no damage of a single word is read past the end") {
  const Words whole = has_shaders() ? probe_shader() : small_module();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const uint32_t value : {0u, ~0u, whole[at] ^ 0x10000u, whole[at] << 8}) {
      Words module = whole;
      module[at] = value;
      const std::string said = refusal(module);
      REQUIRE((said.empty() || said.find("its shader is damaged") != std::string::npos));
    }
  }
}

}  // namespace
}  // namespace plumb::vulkan
