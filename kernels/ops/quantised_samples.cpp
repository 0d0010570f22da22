#include "kernels/ops/quantised_samples.h"

#include <algorithm>
#include <cmath>

namespace plumb {
namespace {

int64_t parts_of(int64_t length, int64_t size) { return (length + size - 1) / size; }

class QuantisedMaker {
 public:
  QuantisedMaker(DType storage, int number, int64_t extent, const SampleSource& source)
      : storage_(storage), number_(number), extent_(extent), source_(source) {}

  QuantisedSample dequantize() {
    const std::vector<Tensor> weight = weight_operands();
    out_.operands = {host_tensor(storage_, {rows_, columns_})};
    out_.operands.insert(out_.operands.end(), weight.begin(), weight.end());
    return out_;
  }

  QuantisedSample linear() {
    const std::vector<Tensor> weight = weight_operands();
    const LayoutRow& layout = row_of(out_.weight.layout);
    Shape x{several() ? one_of({1, 2, 5, 9, 17, 33}) : 1, columns_};
    if (several() && chance(3)) x = {one_of({2, 3}), x[0], columns_};
    Shape out = x, ones = x;
    out.set(-1, rows_);
    ones.set(-1, 1);
    const bool whole_rows = layout.codes == CodeType::i8 && one_group_;
    const bool of_codes = (whole_rows || layout.codes == CodeType::f8) && chance(2);
    const DType x_dtype = !of_codes ? storage_ : whole_rows ? DType::i8 : DType::f8_e4m3;
    out_.operands = {host_tensor(storage_, out), values(x_dtype, x)};
    out_.operands.insert(out_.operands.end(), weight.begin(), weight.end());
    out_.operands.push_back(of_codes ? scales(DType::f32, ones) : Tensor());
    out_.operands.push_back(chance(2) ? values(storage_, {rows_}) : Tensor());
    return out_;
  }

  QuantisedSample quantize() {
    const int64_t rows = several() ? one_of({1, 2, 5, 17, 64}) : extent_;
    const int64_t columns = several() ? one_of({1, 3, 8, 33, 64, 257, 1031}) : 1;
    constexpr ScaleRule kRules[] = {ScaleRule::symmetric, ScaleRule::symmetric,
                                    ScaleRule::asymmetric, ScaleRule::shared_exponent};
    constexpr OfAxes kGroups[] = {{1, 0}, {0, 0}, {1, 32}, {16, 16}, {1, 16}};
    QuantizeParams& p = out_.codes;
    p.rule = kRules[number_ % 4];
    p.group = kGroups[number_ % 5];
    const DType f8 = chance(2) ? DType::f8_e4m3 : DType::f8_e5m2;
    DType codes = DType::i8, of_scales = static_cast<DType>(1 + source_.choose(3));
    if (p.rule == ScaleRule::symmetric) {
      codes = chance(2) ? DType::i8 : f8;
      p.divisor = codes == DType::i8 ? (chance(2) ? 127 : 127.5) : info(codes).max;
    } else if (p.rule == ScaleRule::asymmetric) {
      codes = chance(2) ? DType::i8 : DType::u8;
      p.divisor = 255;
    } else {
      codes = f8;
      of_scales = DType::u8;
    }
    const auto groups = [](int64_t length, int64_t size) {
      return parts_of(length, size > 0 ? size : std::max<int64_t>(length, 1));
    };
    const Shape of_groups{groups(rows, p.group[0]), groups(columns, p.group[1])};
    const bool has_zeros = p.rule == ScaleRule::asymmetric;
    out_.operands = {host_tensor(codes, {rows, columns}), host_tensor(of_scales, of_groups),
                     has_zeros ? host_tensor(codes, of_groups) : Tensor(),
                     several_values(storage_, {rows, columns})};
    return out_;
  }

 private:
  bool several() const { return extent_ < 0; }
  bool chance(int of) const { return source_.choose(of) == 0; }
  int64_t one_of(const std::vector<int64_t>& all) const {
    return all[static_cast<size_t>(source_.choose(static_cast<int>(all.size())))];
  }

  Tensor filled(DType dtype, const Shape& shape, const std::function<double()>& value) const {
    const Tensor out = host_tensor(dtype, shape);
    for (int64_t i = 0; i < out.numel(); ++i) {
      store(dtype, out.data<char>() + i * size_of(dtype), value());
    }
    return out;
  }
  Tensor values(DType dtype, const Shape& shape) const {
    if (dtype == DType::i8) {
      return filled(dtype, shape, [&] { return static_cast<double>(source_.choose(256) - 128); });
    }
    return filled(dtype, shape, source_.normal);
  }
  // Also large ones, ties, zeros and NaN; groups of zeros.
  Tensor several_values(DType dtype, const Shape& shape) const {
    const bool zeros = chance(4);
    return filled(dtype, shape, [&] {
      if (zeros && !chance(16)) return 0.0;
      if (chance(64)) return std::nan("");
      if (chance(32)) return 30 * source_.normal();
      return chance(8) ? static_cast<double>(source_.choose(9) - 4) / 4 : source_.normal();
    });
  }
  Tensor scales(DType dtype, const Shape& shape) const {
    return filled(dtype, shape, [&] { return 0.01 + source_.choose(1000) / 4000.0; });
  }
  Tensor bytes(DType dtype, const Shape& shape) const {
    const Tensor out = host_tensor(dtype, shape);
    for (int64_t i = 0; i < out.bytes(); ++i) {
      out.data<uint8_t>()[i] = static_cast<uint8_t>(source_.choose(256));
    }
    return out;
  }

  // {codes, scales, zeros, global_scale, group_index} of [rows_, columns_].
  std::vector<Tensor> weight_operands() {
    const int of_dtype = static_cast<int>(storage_) * 7;  // all layouts are some dtype's
    out_.weight.layout = static_cast<QuantLayout>((number_ + of_dtype) % kLayouts);
    const LayoutRow& layout = row_of(out_.weight.layout);
    rows_ = several() ? one_of({1, 2, 3, 8, 17, 33}) : extent_;
    if (layout.codes == CodeType::blocks) {
      const BlockLayout& block = layout.block;
      columns_ = block.codes * (several() ? 1 + source_.choose(3) : 1);
      return {blocks(block), {}, {}, {}, {}};
    }
    columns_ = several() ? one_of({1, 8, 31, 64, 96, 130}) : 1;
    if (layout.flat) return flat(layout);
    const Shape groups = of_groups(layout);
    const Tensor global =
        layout.has_global_scale ? filled(DType::f32, {1}, [] { return 2.7; }) : Tensor();
    Tensor index;
    if (layout.has_group_index && chance(2)) {
      const auto count = static_cast<int>(groups[1]);
      index = filled(chance(2) ? DType::i32 : DType::i64, {columns_},
                     [&] { return static_cast<double>(source_.choose(count)); });
    }
    return {codes(layout), scales_of(layout, groups), zeros(layout, groups), global, index};
  }

  std::vector<Tensor> flat(const LayoutRow& layout) {
    const int64_t count = rows_ * columns_;
    const bool in_rows = columns_ % 2 == 0 && chance(2);
    const Shape shape = in_rows ? Shape{rows_, columns_ / 2} : Shape{parts_of(count, 2), 1};
    return {
        bytes(DType::u8, shape), scales(DType::f32, {parts_of(count, layout.flat)}), {}, {}, {}};
  }

  // Of rows and of columns.
  Shape of_groups(const LayoutRow& layout) {
    const int64_t size = one_of({8, 16, 32});
    one_group_ = chance(3);
    const bool of_rows = layout.of_several_rows && chance(2);
    out_.weight.group = {of_rows ? size : 1, one_group_ ? std::max<int64_t>(columns_, 1) : size};
    return {parts_of(rows_, out_.weight.group[0]), parts_of(columns_, out_.weight.group[1])};
  }
  static Shape stored(const LayoutRow& layout, const Shape& shape) {
    return layout.by_input ? Shape{shape[1], shape[0]} : shape;
  }

  Tensor codes(const LayoutRow& layout) const {
    Shape shape = stored(layout, {rows_, columns_});
    const auto packed = [&](int64_t in_one) {
      shape.set(layout.packed_axis, parts_of(shape[layout.packed_axis], in_one));
      return shape;
    };
    switch (layout.codes) {
      case CodeType::words: return bytes(DType::i32, packed(8));
      case CodeType::bytes: return bytes(DType::u8, packed(2));
      case CodeType::f8: return values(chance(3) ? DType::f8_e5m2 : DType::f8_e4m3, shape);
      default: return values(DType::i8, shape);
    }
  }
  Tensor scales_of(const LayoutRow& layout, const Shape& groups) const {
    const Shape shape = stored(layout, groups);
    if (layout.exponents) {
      return filled(DType::u8, shape, [&] { return static_cast<double>(120 + source_.choose(9)); });
    }
    if (layout.has_global_scale) {
      return filled(DType::f8_e4m3, shape, [&] { return 1.0 + source_.choose(64) / 8.0; });
    }
    return scales(static_cast<DType>(1 + source_.choose(3)), shape);
  }
  Tensor zeros(const LayoutRow& layout, const Shape& groups) const {
    if (layout.zeros == ZeroType::none) return {};
    Shape shape = stored(layout, groups);
    if (layout.zeros == ZeroType::plain) {
      return filled(DType::i8, shape, [&] { return static_cast<double>(source_.choose(17) - 8); });
    }
    shape.set(layout.zeros_axis, parts_of(shape[layout.zeros_axis], 8));
    return bytes(DType::i32, shape);
  }
  // Random bytes, whose f16 scales are numbers of everyday size.
  Tensor blocks(const BlockLayout& block) const {
    const Tensor out = bytes(DType::u8, {rows_, columns_ / block.codes * block.bytes});
    const auto put = [&](int64_t at) {
      store(DType::f16, out.data<char>() + at, 0.01 + source_.choose(1000) / 40000.0);
    };
    for (int64_t at = 0; at < out.numel(); at += block.bytes) {
      put(at + block.scale);
      if (block.least >= 0) put(at + block.least);
    }
    return out;
  }

  const DType storage_;
  const int number_;
  const int64_t extent_;
  const SampleSource& source_;
  QuantisedSample out_;
  int64_t rows_ = 0, columns_ = 0;
  bool one_group_ = false;
};

}  // namespace

QuantisedSample quantised_sample(OpId op, DType storage, int number, int64_t extent,
                                 const SampleSource& source) {
  QuantisedMaker maker(storage, number, extent, source);
  switch (op) {
    case OpId::quantize: return maker.quantize();
    case OpId::quantised_linear: return maker.linear();
    default: return maker.dequantize();
  }
}

}  // namespace plumb
