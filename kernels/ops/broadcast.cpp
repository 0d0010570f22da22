#include "kernels/ops/broadcast.h"

#include <algorithm>

#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

// Which both are repeated to; the first that fits neither is a UsageError.
Shape common_shape(const OpRow& row, std::span<const Tensor* const> inputs) {
  Shape out = inputs[0]->shape();
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Shape &a = out, &b = inputs[i]->shape();
    std::vector<int64_t> extents(static_cast<size_t>(std::max(a.rank(), b.rank())));
    for (int axis = 1; axis <= std::ssize(extents); ++axis) {
      const int64_t of_a = axis <= a.rank() ? a[-axis] : 1, of_b = axis <= b.rank() ? b[-axis] : 1;
      require(of_a == of_b || of_a == 1 || of_b == 1, row.name, row.operands.operands[i + 1].name,
              " has shape ", b, ", which does not go with ", a, ": axis ", -axis, " has extents ",
              of_b, " and ", of_a, ", neither is 1");
      extents[extents.size() - static_cast<size_t>(axis)] = of_a == 1 ? of_b : of_a;
    }
    out = Shape(extents);
  }
  return out;
}

void require_type(const OpRow& row, const Operand& operand, const Tensor& t, DType storage) {
  if (operand.type == OperandType::boolean) {
    return require_dtype(row.name, operand.name, t, DType::boolean);
  }
  require(is_floating(t.dtype()) || row.dtypes.has(t.dtype()), row.name, operand.name, " is ",
          name_of(t.dtype()), ", expected ", words_of(row.dtypes));
  require_dtype(row.name, operand.name, t, storage);
}

}  // namespace

BroadcastCall broadcast(OpId op, const Device& device, const Tensor& out,
                        std::span<const Tensor* const> inputs) {
  const OpRow& row = row_of(op);
  const auto& operands = row.operands.operands;
  const DType storage = inputs[operands[1].type == OperandType::boolean ? 1 : 0]->dtype();
  for (size_t i = 0; i <= inputs.size(); ++i) {
    const Tensor& t = i == 0 ? out : *inputs[i - 1];
    require(t.defined(), row.name, operands[i].name, " is missing");
    require_placed(row.name, device, {{operands[i].name, t}});
    require_type(row, operands[i], t, storage);
  }
  require_shape(row.name, "out", out, common_shape(row, inputs));
  BroadcastCall it{{row, is_floating(storage) ? storage : DType::f32}, {}};
  for (const Tensor* input : inputs) it.inputs.push_back(input->broadcast(out.shape()));
  return it;
}

OpCall with_equal_shapes(const OpCall& call) {
  if (!row_of(call.op).formula) return call;
  std::vector<Tensor> tensors = call.tensors();
  const Shape shape = tensors[0].shape();
  const auto is_alike = [&](const Tensor& t) { return t.shape() == shape; };
  if (std::ranges::all_of(tensors, is_alike)) return call;
  for (Tensor& t : tensors) t = t.broadcast(shape);
  const auto repeats_last = [](const Tensor& t) { return t.dim(-1) > 1 && t.stride(-1) == 0; };
  if (std::ranges::any_of(tensors, repeats_last)) {
    for (Tensor& t : tensors) t = t.split(-1, 1);
  }
  return call.with(tensors);
}

}  // namespace plumb
