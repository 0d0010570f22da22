#include "kernels/ops/op_call.h"

#include "kernels/ops/gemm_call.h"
#include "kernels/ops/ops.h"

namespace plumb {
namespace {

std::vector<Tensor*> tensors_in(OpArgument& argument) {
  if (auto* t = std::get_if<Tensor>(&argument)) return {t};
  if (auto* mask = std::get_if<AttentionMask>(&argument)) {
    return {&mask->key_valid, &mask->explicit_mask};
  }
  if (auto* in = std::get_if<SsdInputs>(&argument)) {
    return {&in->x, &in->dt, &in->b, &in->c, &in->a_log, &in->d, &in->dt_bias, &in->state};
  }
  return {};
}

}  // namespace

std::vector<Tensor> OpCall::tensors() const {
  std::vector<Tensor> out;
  for (OpArgument argument : arguments) {
    for (const Tensor* t : tensors_in(argument)) out.push_back(*t);
  }
  return out;
}

OpCall OpCall::with(const std::vector<Tensor>& tensors) const {
  OpCall out = *this;
  auto next = tensors.begin();
  for (OpArgument& argument : out.arguments) {
    for (Tensor* t : tensors_in(argument)) *t = *next++;
  }
  return out;
}

bool OpCall::writes(size_t tensor) const {
  if (is_pair()) return tensor % 2 == 0;
  return tensor < static_cast<size_t>(row_of(op).operands.outputs);
}

Tensor OpCall::operand(std::string_view name) const {
  const std::vector<Tensor> given = tensors();
  for (size_t i = 0; i < given.size(); ++i) {
    if (row_of(op).operands.operands.at(i).name == name) return given[i];
  }
  throw std::logic_error("no operand has that name");
}

const Signature& OpCall::signature() const {
  const OpRow& row = row_of(op);
  for (const OpArgument& argument : arguments) {
    if (const auto* gemm = std::get_if<GemmParams>(&argument)) return gemm_signature(*gemm);
    if (const bool* on = std::get_if<bool>(&argument)) return *on ? row.transposed : row.operands;
  }
  return row.operands;
}

int64_t OpCall::extent(char letter) const {
  const Signature& operands = signature();
  const int8_t place = operands.place_of(letter);
  const std::vector<Tensor> given = tensors();
  for (size_t i = 0; i < given.size(); ++i) {
    const Operand& operand = operands.operands.at(i);
    for (int axis = 0; given[i].defined() && axis < operand.rank; ++axis) {
      const Extent& extent = operand.axes.at(static_cast<size_t>(axis));
      if (extent.letter == place && extent.number == 1 && !extent.broadcast) {
        return given[i].dim(axis - operand.rank);
      }
    }
  }
  throw std::logic_error("no operand has that letter");
}

std::vector<Tensor> OpCall::outputs() const {
  std::vector<Tensor> all = tensors(), out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (writes(i)) out.push_back(all[i]);
  }
  return out;
}

std::vector<Tensor> OpCall::inputs() const {
  std::vector<Tensor> all = tensors(), out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!writes(i)) out.push_back(all[i]);
  }
  return out;
}

OpCall OpCall::with(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) const {
  std::vector<Tensor> all = tensors();
  size_t output = 0, input = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!writes(i)) {
      all[i] = inputs.at(input++);
    } else {
      all[i] = output < outputs.size() ? outputs[output] : Tensor();
      ++output;
    }
  }
  return with(all);
}

std::vector<OpCall> OpCall::singles() const {
  if (!is_pair()) return {*this};
  const std::vector<Tensor> t = tensors();
  return {op_call<&Ops::copy>(op, t[0], t[1]), op_call<&Ops::copy>(op, t[2], t[3])};
}

}  // namespace plumb
