// Every op's row against calls made from its letters: right ones pass, each operand that is not
// what the row says is named.
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/error.h"
#include "kernels/ops/fits.h"
#include "tests/catch.h"

namespace plumb {
namespace {

using Catch::Contains;
using fits_detail::kSignature;

// What a call throws; empty where it passes.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

constexpr int64_t kExtents[] = {2, 4, 3, 5, 7, 6, 8, 9, 10, 11};  // of the letters in their order

class Call {
 public:
  template <OpId op, bool transposed>
  static Call of(Device& device) {
    constexpr auto count = static_cast<size_t>(kSignature<op, transposed>.count);
    return Call(device, kSignature<op, transposed>, [](const Call& call) {
      return [&]<size_t... i>(std::index_sequence<i...>) {
        return plumb::check<op, transposed>(call.device_, false, call.tensors_.at(i)...);
      }
      (std::make_index_sequence<count>());
    });
  }

  const Signature& signature() const { return signature_; }
  const Operand& operand(int i) const { return signature_.operands.at(static_cast<size_t>(i)); }
  Tensor& tensor(int i) { return tensors_.at(static_cast<size_t>(i)); }

  CheckedCall check() const { return check_(*this); }
  std::string error() const {
    return error_of([this] { check(); });
  }

  Shape shape_of(const Operand& it) const {
    std::vector<int64_t> out;
    if (it.leading || it.any_shape) out = {2, 3};
    for (int i = 0; i < it.rank; ++i) {
      const Extent& axis = it.axes.at(static_cast<size_t>(i));
      out.push_back(axis.letter < 0 ? axis.number : axis.number * extent(axis.letter));
    }
    return Shape(out);
  }
  int64_t extent(int8_t letter) const {
    if (letter == signature_.divisor) return 2;
    if (letter == signature_.multiple) return 6;
    return kExtents[letter];
  }
  // How many axes have the letter of this one; one alone may be anything.
  int holders_of(int8_t letter) const {
    int count = 0;
    for (int i = 0; i < signature_.count; ++i) {
      for (int axis = 0; axis < operand(i).rank; ++axis) {
        count += operand(i).axes.at(static_cast<size_t>(axis)).letter == letter;
      }
    }
    return count;
  }

  Tensor right(const Operand& it) const { return device_.allocate(dtype_of(it), shape_of(it)); }
  static DType dtype_of(const Operand& it) {
    switch (it.type) {
      case OperandType::i64:
      case OperandType::ids: return DType::i64;
      case OperandType::boolean: return DType::boolean;
      case OperandType::storage:
      case OperandType::same:
      case OperandType::total:
      case OperandType::sums:
      case OperandType::narrow:
      case OperandType::floating:
      case OperandType::any:
      case OperandType::scales: return DType::bf16;
      case OperandType::codes: return DType::i8;
      case OperandType::wide: break;
    }
    return DType::f32;
  }

 private:
  using Check = CheckedCall (*)(const Call&);

  Call(Device& device, const Signature& signature, Check check)
      : device_(device), signature_(signature), check_(check) {
    for (int i = 0; i < signature_.count; ++i) tensors_.push_back(right(operand(i)));
  }

  Device& device_;
  const Signature& signature_;
  Check check_;
  std::vector<Tensor> tensors_;
};

template <OpId op, bool transposed, class Visit>
void for_each_operand(Device& device, Visit visit) {
  INFO(name_of(op));
  const Call right = Call::of<op, transposed>(device);
  for (int operand = 0; operand < right.signature().count; ++operand) {
    INFO(right.operand(operand).name);
    visit(right, operand, "[" + std::string(name_of(op)) + "] ");
  }
}

template <class Visit>
void for_each_call(Device& device, Visit visit) {
  [&]<size_t... op>(std::index_sequence<op...>) {
    (for_each_operand<static_cast<OpId>(op), false>(device, visit), ...);
  }
  (std::make_index_sequence<kOpCount>());
  for_each_operand<OpId::matmul, true>(device, visit);
}

TEST_CASE("every op takes what its row says, and names what it does not take") {
  const auto device = open_device("cpu");
  const auto other = open_device("oracle");
  for_each_call(*device, [&](const Call& right, int i, const std::string& op) {
    const Operand& operand = right.operand(i);
    const std::string name = op + std::string(operand.name);
    CHECK_NOTHROW(right.check());

    Call absent = right;
    absent.tensor(i) = Tensor();
    CHECK(absent.error() == (operand.optional ? "" : name + " is missing"));

    Call elsewhere = right;
    elsewhere.tensor(i) = other->allocate(Call::dtype_of(operand), right.shape_of(operand));
    CHECK_THAT(elsewhere.error(), Contains(name + " is not on device cpu"));

    // One that is alone may be of any dtype.
    const int count = right.signature().count;
    const bool alone = operand.type == OperandType::same &&
                       (count == 1 || (count == 2 && right.operand(0).type != OperandType::same));
    if (operand.type != OperandType::any && !alone) {
      Call whole = right;  // a dtype that no operand has, or codes have not
      const DType other_dtype = operand.type == OperandType::codes ? DType::boolean : DType::i8;
      whole.tensor(i) = device->allocate(other_dtype, right.shape_of(operand));
      CHECK_THAT(whole.error(), Contains(op));
    }

    Call flat = right;
    flat.tensor(i) = device->allocate(Call::dtype_of(operand), {1, 1, 1, 1, 1, 1});
    const bool any_shape = right.operand(0).any_shape || operand.any_shape;
    if (!any_shape && (!operand.leading || operand.type != OperandType::any)) {
      CHECK_THAT(flat.error(), Contains(op) && Contains(" has shape "));
    }
  });
}

TEST_CASE("an extent that is not its letter's is named with the letter") {
  const auto device = open_device("cpu");
  for_each_call(*device, [&](const Call& right, int i, const std::string& op) {
    const Operand& operand = right.operand(i);
    for (int axis = 0; axis < operand.rank; ++axis) {
      const Extent& extent = operand.axes.at(static_cast<size_t>(axis));
      Shape shape = right.shape_of(operand);
      const int at = shape.rank() - operand.rank + axis;
      shape.set(at, shape[at] + 1);
      Call wrong = right;
      wrong.tensor(i) = device->allocate(Call::dtype_of(operand), shape);
      const Signature& letters = right.signature();
      if (extent.letter >= 0 && right.holders_of(extent.letter) == 1) {
        const bool divides = extent.letter == letters.divisor || extent.letter == letters.multiple;
        if (!divides) CHECK_NOTHROW(wrong.check());
      } else {
        CHECK_THAT(wrong.error(), Contains(op));
      }
    }
  });
}

TEST_CASE("what was expected of an operand is said in its letters") {
  const auto device = open_device("cpu");
  Ops& ops = device->ops();
  const auto of = [&](const Shape& shape) { return device->allocate(DType::f32, shape); };
  const auto said = [](auto call) { return error_of(call); };
  CHECK(said([&] {
          ops.linear(of({2, 5}), of({2, 48}), of({5, 32}));
        }) == "[linear] weight has shape [5, 32], expected [N,K] with K = 48");
  CHECK(said([&] {
          ops.add(of({2, 3}), of({2, 3}), of({3, 3}));
        }) ==
        "[add] b has shape [3, 3], which does not go with [2, 3]: axis -2 has extents 3 and 2, "
        "neither is 1");
  CHECK(said([&] {
          ops.add(of({2, 3}), of({2, 1}), of({4, 2, 3}));
        }) == "[add] out has shape [2, 3], expected [4, 2, 3]");
  CHECK(said([&] {
          ops.rms_norm(of({2, 3, 4}), of({2, 3, 4}), of({1, 4}), {});
        }) == "[rms_norm] weight has shape [1, 4], expected [4]");
  CHECK(said([&] {
          ops.matmul(of({1, 3, 2, 2}), of({1, 3, 2, 4}), of({1, 2, 4, 2}), false);
        }) == "[matmul] G = 2 must divide H = 3");
  CHECK(said([&] {
          ops.rotary(of({2, 1, 3, 8}), of({2, 1, 3, 8}), of({3, 3, 8}), of({1, 3, 8}),
                     RotaryStyle::half);
        }) == "[rotary] cos has shape [3, 3, 8], expected [1|B,T,R] with B = 2");
}

TEST_CASE("a call says what letters and names of its row are") {
  const auto of = [](const Shape& shape) { return host_tensor(DType::f32, shape); };
  const OpCall product = op_call<&Ops::matmul>(OpId::matmul, of({1, 2, 3, 5}), of({1, 2, 3, 7}),
                                               of({1, 1, 5, 7}), true);
  CHECK(product.extent('K') == 7);
  CHECK(product.extent('N') == 5);
  CHECK(product.operand("b").shape() == Shape{1, 1, 5, 7});
}

}  // namespace
}  // namespace plumb
