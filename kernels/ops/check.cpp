#include "kernels/ops/check.h"

#include <stdexcept>

#include "kernels/core/error.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

class Check {
 public:
  Check(const OpRow& row, const Signature& signature, const Device& device,
        std::initializer_list<const Tensor*> tensors)
      : row_(row),
        signature_(signature),
        device_(device),
        tensors_(tensors.begin()),
        count_(static_cast<int>(tensors.size())) {
    known_.fill(-1);
  }

  void run(bool narrow) {
    each([&](const Operand& operand, const Tensor& t) { place(operand, t); });
    each([&](const Operand& operand, const Tensor& t) { take_storage(operand, t); });
    each([&](const Operand& operand, const Tensor& t) { hold_dtype(operand, t, narrow); });
    each([&](const Operand& operand, const Tensor& t) { hold_shape(operand, t); });
    hold_divisor();
  }

 private:
  // Inputs before outputs: an output that does not fit them is the one to blame.
  template <class Visit>
  void each(Visit visit) const {
    for (int i = signature_.outputs; i < count_; ++i) visit(operand(i), *tensors_[i]);
    for (int i = 0; i < signature_.outputs; ++i) visit(operand(i), *tensors_[i]);
  }
  const Operand& operand(int i) const { return signature_.operands[static_cast<size_t>(i)]; }
  const char* op() const { return name_of(row_.id).data(); }

  void place(const Operand& operand, const Tensor& t) const {
    if (!t.defined()) {
      require(operand.optional, op(), operand.name, " is missing");
    } else {
      require_placed(op(), device_, {{operand.name, t}});
    }
  }

  void take_storage(const Operand& operand, const Tensor& t) {
    if (has_storage_ || !t.defined()) return;
    if (operand.type != OperandType::storage && operand.type != OperandType::same) return;
    require(is_floating(t.dtype()) || row_.dtypes.has(t.dtype()), op(), operand.name, " is ",
            name_of(t.dtype()), ", expected ", words_of(row_.dtypes));
    storage_ = t.dtype();
    has_storage_ = true;
  }

  void hold_dtype(const Operand& operand, const Tensor& t, bool narrow) const {
    if (!t.defined()) return;
    switch (operand.type) {
      case OperandType::any: return;
      case OperandType::i64: return require_dtype(op(), operand.name, t, DType::i64);
      case OperandType::ids:
        return require(is_id(t.dtype()), op(), operand.name, " is ", name_of(t.dtype()),
                       ", expected i64, i32, u32 or u8");
      case OperandType::boolean: return require_dtype(op(), operand.name, t, DType::boolean);
      case OperandType::wide:
        return require_dtype(op(), operand.name, t,
                             storage_ == DType::f64 ? DType::f64 : DType::f32);
      case OperandType::floating:
        return require(is_floating(t.dtype()), op(), operand.name, " is ", name_of(t.dtype()),
                       ", expected a float dtype");
      case OperandType::codes:
        return require(is_code(t.dtype()), op(), operand.name, " is ", name_of(t.dtype()),
                       ", expected i8, u8, i32, f8_e4m3 or f8_e5m2");
      case OperandType::scales:
        return require(is_floating(t.dtype()) || t.dtype() == DType::u8, op(), operand.name, " is ",
                       name_of(t.dtype()), ", expected a float dtype or u8");
      case OperandType::narrow:
        if (narrow && storage_ == DType::f64 && is_floating(t.dtype())) return;
        [[fallthrough]];
      case OperandType::storage:
      case OperandType::same: return require_dtype(op(), operand.name, t, storage_);
      case OperandType::total: return require_dtype(op(), operand.name, t, total_of(storage_));
      case OperandType::sums:
        if (narrow && t.dtype() == DType::f64 && is_float8(storage_)) return;
        return require_dtype(op(), operand.name, t, sums_of(storage_));
    }
  }

  void hold_shape(const Operand& operand, const Tensor& t) {
    if (operand.any_shape) return;
    if (!t.defined()) return;
    const Tensor* const leading = leading_;
    const std::array<int64_t, kMostLetters> known = known_;
    const int before = t.rank() - operand.rank;
    bool fits = operand.leading ? before >= 0 && holds_leading(t, before) : before == 0;
    for (int i = 0; fits && i < operand.rank; ++i) {
      fits = holds(operand.axes[static_cast<size_t>(i)], t.dim(before + i));
    }
    if (fits) return;
    throw UsageError(text('[', op(), "] ", operand.name, " has shape ", t.shape(), ", expected ",
                          expected(operand, t, leading, known)));
  }

  bool holds_leading(const Tensor& t, int before) {
    if (!leading_) {
      leading_ = &t;
      leading_rank_ = before;
      return true;
    }
    bool same = before == leading_rank_;
    for (int i = 0; same && i < before; ++i) same = t.dim(i) == leading_->dim(i);
    return same;
  }

  bool holds(const Extent& axis, int64_t extent) {
    if (axis.letter < 0) return extent == axis.number;
    int64_t& known = known_[static_cast<size_t>(axis.letter)];
    if (axis.broadcast && extent == 1) return true;
    if (known >= 0) return extent == known * axis.number;
    known = extent / axis.number;
    return extent % axis.number == 0;
  }

  void hold_divisor() const {
    if (signature_.divisor < 0) return;
    const int64_t divisor = known_[static_cast<size_t>(signature_.divisor)];
    const int64_t multiple = known_[static_cast<size_t>(signature_.multiple)];
    require(divisor > 0 && multiple % divisor == 0, op(), letter(signature_.divisor), " = ",
            divisor, " must divide ", letter(signature_.multiple), " = ", multiple);
  }

  char letter(int8_t place) const { return signature_.letters[static_cast<size_t>(place)]; }

  // The shape of an operand, where others settle it; else its letters, and those of them that
  // others gave another value.
  std::string expected(const Operand& operand, const Tensor& t, const Tensor* leading,
                       const std::array<int64_t, kMostLetters>& known) const {
    std::vector<int64_t> shape, first;
    for (int i = 0; leading && i < leading_rank_; ++i) first.push_back(leading->dim(i));
    if (operand.leading) shape = first;
    bool settled = !operand.leading || leading;
    std::string with;
    const int before = t.rank() - operand.rank;
    if (operand.leading && leading && before != leading_rank_) with = text(", * = ", Shape(first));
    for (int i = 0; i < operand.rank; ++i) {
      const Extent& axis = operand.axes[static_cast<size_t>(i)];
      const int64_t value = axis.letter < 0 ? 1 : known[static_cast<size_t>(axis.letter)];
      settled = settled && value >= 0 && !axis.broadcast;
      shape.push_back(value * axis.number);
      const bool other = before + i >= 0 && t.dim(before + i) != value * axis.number;
      if (axis.letter >= 0 && value >= 0 && other) {
        with += text(", ", letter(axis.letter), " = ", value);
      }
    }
    if (settled) return text(Shape(shape));
    return text(operand.letters, with.empty() ? "" : " with ", with.empty() ? "" : with.substr(2));
  }

  const OpRow& row_;
  const Signature& signature_;
  const Device& device_;
  const Tensor* const* tensors_;
  const int count_;
  std::array<int64_t, kMostLetters> known_;
  const Tensor* leading_ = nullptr;
  int leading_rank_ = 0;
  DType storage_ = DType::f32;
  bool has_storage_ = false;
};

}  // namespace

std::string words_of(const DTypes& dtypes) {
  std::string out = "a float dtype";
  std::string_view last;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_floating(dtype) || !dtypes.has(dtype)) continue;
    if (!last.empty()) out += text(", ", last);
    last = name_of(dtype);
  }
  return last.empty() ? out : text(out, " or ", last);
}

void refuse(OpId op, const Signature& signature, const Device& device,
            std::initializer_list<const Tensor*> tensors, bool narrow_weights) {
  Check(row_of(op), signature, device, tensors).run(narrow_weights);
  throw std::logic_error(text('[', name_of(op), "] refused what fits"));
}

}  // namespace plumb
