// OpCall: one call of an op as data, for ops that wrap those of another device and forward calls.
#pragma once

#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/ops/op_id.h"
#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

class Ops;

using OpArgument = std::variant<Tensor, double, bool, int64_t, Axes, PerAxis, RandomStream,
                                Activation, std::optional<Activation>, ScaleOperation, RotaryStyle,
                                RmsNormParams, GatedRmsNormParams, AttentionMask, SdpaParams,
                                SsdInputs, SsdParams, GroupNormParams, ConvParams, PoolParams,
                                GemmParams, QuantisedParams, QuantizeParams, LogitLossParams>;

struct OpCall {
  OpId op;
  std::vector<OpArgument> arguments;  // as in ops.h, without the op of unary() and binary()
  void (*method)(Ops& ops, OpId op, const std::vector<OpArgument>& arguments);

  void on(Ops& ops) const { method(ops, op, arguments); }
  // The only argument of this type.
  template <class T>
  const T& get() const {
    for (const OpArgument& argument : arguments) {
      if (const T* found = std::get_if<T>(&argument)) return *found;
    }
    throw std::logic_error("no such argument");
  }
  // Every tensor in the order of the arguments, outputs first, also those inside masks and scans;
  // absent ones are undefined.
  std::vector<Tensor> tensors() const;
  std::vector<Tensor> outputs() const;  // of these, those that are written
  std::vector<Tensor> inputs() const;   // and those that are read
  // The same call of other tensors, in the order of tensors().
  OpCall with(const std::vector<Tensor>& tensors) const;
  // The same call of other outputs, of which the last may be missing, and other inputs.
  OpCall with(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) const;

  // copy_pair (out, x, out, x) as two copies; any other call as it is.
  bool is_pair() const { return op == OpId::copy && arguments.size() == 4; }
  std::vector<OpCall> singles() const;
  // Whether the tensor at this place of tensors() is written.
  bool writes(size_t tensor) const;
  // Of the op's row, or what it is with the call's switches on.
  const Signature& signature() const;
  // The tensor of this name in the op's row, and what a letter of the row is in this call.
  Tensor operand(std::string_view name) const;
  int64_t extent(char letter) const;
};

namespace op_call_detail {

template <auto method, class... Parameters, size_t... at>
void apply(void (Ops::*)(Parameters...), Ops& ops, OpId, const std::vector<OpArgument>& arguments,
           std::index_sequence<at...>) {
  (ops.*method)(std::get<std::decay_t<Parameters>>(arguments[at])...);
}
// A method that runs several ops.
template <auto method, class... Parameters, size_t... at>
void apply(void (Ops::*)(OpId, Parameters...), Ops& ops, OpId op,
           const std::vector<OpArgument>& arguments, std::index_sequence<at...>) {
  (ops.*method)(op, std::get<std::decay_t<Parameters>>(arguments[at])...);
}

}  // namespace op_call_detail

// The call ops.method(arguments...).
template <auto method, class... Arguments>
OpCall op_call(OpId op, const Arguments&... arguments) {
  return {op,
          {OpArgument(arguments)...},
          [](Ops& ops, OpId called, const std::vector<OpArgument>& values) {
            op_call_detail::apply<method>(method, ops, called, values,
                                          std::index_sequence_for<Arguments...>());
          }};
}

}  // namespace plumb
