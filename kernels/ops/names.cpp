#include <array>

#include "kernels/core/error.h"
#include "kernels/ops/ops.h"

namespace plumb {
namespace {

struct ActivationName {
  Activation function;
  std::string_view name;
};
constexpr std::array<ActivationName, 5> kActivationNames = {
    {{Activation::silu, "silu"},
     {Activation::gelu, "gelu"},
     {Activation::gelu_tanh, "gelu_pytorch_tanh"},
     {Activation::tanh, "tanh"},
     {Activation::silu, "swish"}}};

}  // namespace

std::string_view name_of(OpId op) { return row_of(op).name; }

bool is_fused(OpId op) { return op >= OpId::gated_activation; }
bool is_composition(OpId op) { return op >= OpId::linear_backward; }

std::optional<Activation> activation_from_name(std::string_view hf_name) {
  for (const ActivationName& row : kActivationNames) {
    if (row.name == hf_name) return row.function;
  }
  return std::nullopt;
}

std::string_view name_of(Activation function) {
  for (const ActivationName& row : kActivationNames) {
    if (row.function == function) return row.name;
  }
  return "?";
}

std::string to_string(const Contract& contract) {
  std::string out(name_of(contract.storage));
  if (contract.multiply != contract.storage) out += text(" multiply ", name_of(contract.multiply));
  const Accumulator& acc = contract.accumulator;
  out += text(" acc", acc.bits, acc.rounding == SumRounding::nearest ? "" : text("rz", acc.block));
  switch (contract.points) {
    case RoundingPoints::eager: return out + " eager";
    case RoundingPoints::fused: return out + " fused";
    case RoundingPoints::flash: return out + " flash";
  }
  return out;
}

}  // namespace plumb
