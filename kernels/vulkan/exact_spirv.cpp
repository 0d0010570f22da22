#include "kernels/vulkan/exact_spirv.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "kernels/core/error.h"

namespace plumb::vulkan {
namespace {

// Numbers of the SPIR-V specification, sections "Physical Layout" and "Binary Form".
constexpr uint32_t kSpirvMagic = 0x07230203,
                   kSpirvVersion = 0x00010500;  // 1.5: what Vulkan 1.2 reads
constexpr size_t kHeaderWords = 5, kBoundWord = 3;
enum Opcode : uint32_t {
  kExtInst = 12,
  kEntryPoint = 15,
  kExecutionMode = 16,
  kCapability = 17,
  kTypeVoid = 19,
  kTypeForwardPointer = 39,
  kFunction = 54,
  kFunctionEnd = 56,
  kFunctionCall = 57,
  kDecorate = 71,
  kFNegate = 127,
  kFAdd = 129,
  kFSub = 131,
  kFMul = 133,
  kFDiv = 136,
  kFRem = 140,
  kOuterProduct = 147,
  kDot = 148,
};
constexpr uint32_t kNoContraction = 42;                                       // a decoration
constexpr uint32_t kDenormPreserve = 4464, kSignedZeroInfNanPreserve = 4466;  // capabilities
constexpr uint32_t kStorageBuffer16Bit = 4433, kStorageBuffer8Bit = 4448;
constexpr uint32_t kDenormPreserveMode = 4459, kSignedZeroInfNanPreserveMode = 4461;

// Extended instructions count: of floats or not, the decoration does no harm.
bool is_float_operation(uint32_t opcode) {
  constexpr uint32_t others[] = {kExtInst, kFNegate, kFAdd, kFSub, kFMul, kFDiv, kDot};
  return (opcode >= kFRem && opcode <= kOuterProduct) ||
         std::find(std::begin(others), std::end(others), opcode) != std::end(others);
}

struct Instruction {
  size_t at = 0;  // its first word
  uint32_t opcode = 0, words = 0;
};

class Module {
 public:
  // Throws DeviceError unless the instructions fill it.
  Module(std::string_view kernel, std::span<const uint32_t> words)
      : kernel_(kernel), words_(words) {
    if (words.size() < kHeaderWords || words[0] != kSpirvMagic) damaged(0);
    if (words[1] != kSpirvVersion) damaged(1);
    for (size_t at = kHeaderWords; at < words.size(); at += words[at] >> 16) {
      const Instruction it{at, words[at] & 0xffff, words[at] >> 16};
      if (it.words == 0 || it.words > words.size() - at) damaged(at);
      instructions_.push_back(it);
    }
    if (instructions_.empty() || instructions_.back().opcode != kFunctionEnd) damaged(words.size());
  }
  const std::vector<Instruction>& instructions() const { return instructions_; }

  // Operand `i`, counted from 1.
  uint32_t operand(const Instruction& it, uint32_t i) const {
    if (i >= it.words) damaged(it.at);
    return words_[it.at + i];
  }
  // The same, which is the number of a value.
  uint32_t id(const Instruction& it, uint32_t i) const {
    const uint32_t value = operand(it, i);
    if (value == 0 || value >= words_[kBoundWord]) damaged(it.at + i);
    return value;
  }
  [[noreturn]] void damaged(size_t at) const {
    throw DeviceError(text("[vulkan] ", kernel_, ": its shader is damaged (word ", at, " of ",
                           words_.size(), "): build again"));
  }

 private:
  std::string_view kernel_;
  std::span<const uint32_t> words_;
  std::vector<Instruction> instructions_;
};

void append(std::vector<uint32_t>& to, uint32_t opcode, std::initializer_list<uint32_t> operands) {
  to.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | opcode);
  to.insert(to.end(), operands);
}

}  // namespace

std::vector<uint32_t> exact_spirv(std::string_view kernel, std::span<const uint32_t> words,
                                  KeptFloats kept) {
  const Module module(kernel, words);
  std::optional<uint32_t> entry;
  size_t modes_at = 0, decorations_at = 0;  // sections begin where the one before them ends
  std::set<uint32_t> decorated, functions;
  std::map<uint32_t, size_t> called;  // functions, and a word that does
  std::vector<uint32_t> decorations;
  for (const Instruction& it : module.instructions()) {
    if (it.opcode == kEntryPoint) {
      entry = module.id(it, 2);
      called[*entry] = it.at;
      modes_at = it.at + it.words;
    }
    if (it.opcode == kFunction) functions.insert(module.id(it, 2));
    if (it.opcode == kFunctionCall) called[module.id(it, 3)] = it.at;
    const bool is_type = it.opcode >= kTypeVoid && it.opcode <= kTypeForwardPointer;
    if (is_type && decorations_at == 0) decorations_at = it.at;
    if (it.opcode == kDecorate && module.operand(it, 2) == kNoContraction) {
      decorated.insert(module.id(it, 1));
    }
    if (!is_float_operation(it.opcode)) continue;
    const uint32_t result = module.id(it, 2);
    if (decorated.insert(result).second) append(decorations, kDecorate, {result, kNoContraction});
  }
  if (!entry || decorations_at < modes_at) module.damaged(words.size());
  for (const auto& [function, at] : called) {
    if (functions.count(function) == 0) module.damaged(at);
  }

  std::vector<uint32_t> capabilities, modes;
  const auto keep = [&](uint32_t capability, uint32_t mode) {
    append(capabilities, kCapability, {capability});
    append(modes, kExecutionMode, {*entry, mode, 32});
  };
  if (kept.infinities) keep(kSignedZeroInfNanPreserve, kSignedZeroInfNanPreserveMode);
  if (kept.subnormals) keep(kDenormPreserve, kDenormPreserveMode);

  std::vector<uint32_t> out;
  const auto copy = [&](size_t from, size_t to) {
    const auto part = words.subspan(from, to - from);
    out.insert(out.end(), part.begin(), part.end());
  };
  const auto insert = [&](const std::vector<uint32_t>& added) {
    out.insert(out.end(), added.begin(), added.end());
  };
  copy(0, kHeaderWords);
  insert(capabilities);
  copy(kHeaderWords, modes_at);
  insert(modes);
  copy(modes_at, decorations_at);
  insert(decorations);
  copy(decorations_at, words.size());
  return out;
}

bool has_small_elements(std::span<const uint32_t> module) {
  for (size_t at = kHeaderWords; at < module.size(); at += module[at] >> 16) {
    if ((module[at] & 0xffff) != kCapability) return false;  // they come first
    if (module[at + 1] == kStorageBuffer16Bit || module[at + 1] == kStorageBuffer8Bit) return true;
  }
  return false;
}

}  // namespace plumb::vulkan
