#include "kernels/ops/samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <span>

#include "kernels/core/error.h"
#include "kernels/ops/casts.h"
#include "kernels/ops/gemm_call.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/moved_samples.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/quantised_samples.h"
#include "kernels/ops/sample_extents.h"
#include "kernels/ops/sample_windows.h"
#include "kernels/ops/window_calls.h"

namespace plumb {
namespace {

// Of one op and dtype, besides one element and none. Those beyond the three floats that all ops
// have share their kernels' code, and have a few.
constexpr int kSamples = 20, kFewSamples = 6;

enum class Size { several, one, none };

class Maker {
 public:
  Maker(OpId op, DType storage, int number, Size size)
      : row_(row_of(op)),
        storage_(storage),
        size_(size),
        engine_((static_cast<uint32_t>(op) * 1000 + static_cast<uint32_t>(number)) * 8 +
                static_cast<uint32_t>(storage)),
        transposed_(chance(2)),
        explicit_mask_(chance(3)),
        step_(is_scan() && chance(2)),
        gate_(storage == DType::f32 ? any_dtype() : storage),
        same_(same()),
        mostly_zero_(row_.reduction == Reduction::any),
        casts_to_storage_(op == OpId::cast && chance(2)),
        ignored_(has_labels() && chance(2) ? 0 : -100),
        code_(std::array{DType::i8, DType::f8_e4m3, DType::f8_e5m2}[number % 3]) {
    if (row_.operands.operands[0].any_shape && !row_.reduction) {
      const int64_t extents[] = {-1, 1, 0};
      moved_ = moved_sample(
          op, [this](int of) { return choose(of); }, extents[static_cast<size_t>(size)]);
    }
    if (has_layout(op)) {
      const int64_t extents[] = {-1, 1, 0};
      quantised_ =
          quantised_sample(op, storage, number, extents[static_cast<size_t>(size)],
                           {[this](int of) { return choose(of); }, [this] { return normal(); }});
    }
    const std::span all(signature().operands.data(), static_cast<size_t>(signature().count));
    const bool bare = std::ranges::none_of(all, [](auto& it) { return it.leading && it.rank > 0; });
    const bool alone =
        std::ranges::any_of(all, [](auto& it) { return it.leading && it.rank == 0; });
    if (size != Size::several) leading_ = {size == Size::one ? 1 : 0};
    else
      for (int axes = choose(3) + alone; axes > 0; --axes) leading_.push_back(one_of('*'));
    if (bare) leading_.push_back(extent('C'));
    const bool several = size == Size::several && (gives_bool(op) || gives_ids(op));
    if (row_.reduction && several && leading_.size() == 1) leading_.push_back(one_of('*'));
    if (step_) extents_['T'] = 1;
    gemm_.transpose_a = row_.id == OpId::gemm && chance(2);
    gemm_.transpose_b = transposed_;
    windows_ = sample_windows(row_, size == Size::several, [this](int of) { return choose(of); });
    for (const auto& [letter, extent] : windows_.extents) extents_[letter] = extent;
    if (!windows_.behind_batch.empty()) {
      leading_.resize(1);
      leading_.insert(leading_.end(), windows_.behind_batch.begin(), windows_.behind_batch.end());
    }
    // Where there are no elements, there are no results either.
    for (int axis = 0; row_.reduction && axis < std::ssize(leading_); ++axis) {
      if (leading_[static_cast<size_t>(axis)] > 0 && chance(2)) axes_.set |= 1u << axis;
    }
    // One index or bool shows little, and so do those of one element each.
    if (row_.reduction && several && leading_.size() > 1 && leading_[1] > 0) {
      axes_.set = (axes_.set & ~1u) | 2u;
      leading_[0] += 6;
    }
    for (int axis = 0; axis < std::ssize(leading_); ++axis) {
      const int64_t extent = leading_[static_cast<size_t>(axis)];
      if (axes_.has(axis))
        reduced_ = static_cast<int>(std::clamp<int64_t>(reduced_ * extent, 1, 1 << 20));
    }
    // Not in place (samples_of): the first input has the output's shape there.
    const bool broadcasts = takes_broadcasts(op) && number % 4 != 3 && size == Size::several;
    const int inputs = row_.operands.count - 1;
    for (size_t axis = 0; broadcasts && chance(2) && axis < leading_.size(); ++axis) {
      repeated_.push_back(choose((1 << inputs) - 1));
    }
  }

  OpCall call() {
    if (row_.reduction) return of<&Ops::reduce>(&Ops::reduce);
    if (is_convolution(row_.id)) return of<&Ops::convolve>(&Ops::convolve);
    if (is_pool(row_.id)) return of<&Ops::pool>(&Ops::pool);
    return [this]<class O>() {
      switch (row_.id) {
#define PLUMB_OP(name, ...)                                              \
  case OpId::name:                                                       \
    if constexpr (requires { &O::name; }) return of<&O::name>(&O::name); \
    break;
#include "kernels/ops/op_list.h"
      }
      // A formula without a method of its own.
      switch (signature().count) {
        case 2: return of<&O::unary>(&O::unary);
        case 3: return of<&O::binary>(&O::binary);
        default: return of<&O::ternary>(&O::ternary);
      }
    }.template operator()<Ops>();
  }

 private:
  template <auto method, class... Parameters>
  OpCall of(void (Ops::*)(Parameters...)) {
    // Braced lists are evaluated in order: operands come in that of the row.
    const std::tuple<std::decay_t<Parameters>...> made{
        argument(static_cast<std::decay_t<Parameters>*>(nullptr))...};
    return std::apply([&](const auto&... a) { return op_call<method>(row_.id, a...); }, made);
  }
  template <auto method, class... Parameters>
  OpCall of(void (Ops::*)(OpId, Parameters...)) {
    return of<method, Parameters...>(static_cast<void (Ops::*)(Parameters...)>(nullptr));
  }

  // One argument of each type.
  Axes argument(Axes*) { return moved_ ? moved_->axes : axes_; }
  PerAxis argument(PerAxis*) { return moved_->per_axis; }
  RandomStream argument(RandomStream*) {
    const int64_t seed = choose(1 << 30), offset = choose(3000);
    return {seed << 31, chance(2) ? offset : offset + (int64_t{1} << 40)};
  }
  Tensor argument(Tensor*);
  double argument(double*);
  bool argument(bool*) { return transposed_; }
  int64_t argument(int64_t*) {  // axis, offset, ignored label or row of padding
    if (has_labels()) return ignored_;
    if (row_.id == OpId::embedding_backward) {
      const int64_t rows = extent('V');
      return rows == 0 || chance(2) ? -1 : choose(static_cast<int>(rows));
    }
    return moved_ ? moved_->axis : choose(row_.along_axis ? rank_ : 3000);
  }
  Activation argument(Activation*) { return static_cast<Activation>(choose(4)); }
  std::optional<Activation> argument(std::optional<Activation>*) {
    return chance(2) ? std::optional(static_cast<Activation>(choose(4))) : std::nullopt;
  }
  ScaleOperation argument(ScaleOperation*) { return static_cast<ScaleOperation>(choose(2)); }
  RotaryStyle argument(RotaryStyle*) { return static_cast<RotaryStyle>(choose(2)); }
  RmsNormParams argument(RmsNormParams*) {
    return {eps(), chance(2) ? 1.0 : 0.0, static_cast<WeightRounding>(choose(2))};
  }
  GatedRmsNormParams argument(GatedRmsNormParams*);
  GroupNormParams argument(GroupNormParams*) { return {windows_.groups, eps()}; }
  GemmParams argument(GemmParams*);
  ConvParams argument(ConvParams*) { return windows_.conv; }
  PoolParams argument(PoolParams*) { return windows_.pool; }
  QuantisedParams argument(QuantisedParams*) { return quantised_->weight; }
  QuantizeParams argument(QuantizeParams*) { return quantised_->codes; }
  AttentionMask argument(AttentionMask*);
  SdpaParams argument(SdpaParams*) {
    return {1 / std::sqrt(static_cast<double>(extent('D'))),
            chance(2) ? std::optional(2.5) : std::nullopt};
  }
  // Chunks of one row or column, of some, and all at once.
  LogitLossParams argument(LogitLossParams*) {
    constexpr int64_t kChunks[] = {0, 1, 100, 1000};
    return {ignored_, chance(2) ? 1 : 0.3125, chance(2) ? std::optional(2.5) : std::nullopt,
            kChunks[choose(4)]};
  }
  SsdInputs argument(SsdInputs*) {
    const auto next = [&] { return argument(static_cast<Tensor*>(nullptr)); };
    return {next(), next(), next(), next(), next(), next(), next(), next()};
  }
  SsdParams argument(SsdParams*) {
    SsdParams out{step_ ? SsdForm::step : SsdForm::chunk, chance(2) ? 256 : 4, {}, {}};
    if (!step_ && chance(2)) out.dt_min = 0.25, out.dt_max = 1.5;
    return out;
  }

  const Signature& signature() const {
    if (row_.id == OpId::gemm) return gemm_signature(gemm_);
    return transposed_ ? row_.transposed : row_.operands;
  }

  bool has_labels() const {
    return row_.id == OpId::cross_entropy || row_.id == OpId::cross_entropy_backward ||
           row_.id == OpId::linear_cross_entropy || row_.id == OpId::linear_cross_entropy_backward;
  }
  bool is_scan() const { return std::string_view(row_.name).starts_with("ssd_scan"); }
  int choose(int of) { return static_cast<int>(engine_() % static_cast<uint32_t>(of)); }
  bool chance(int of) { return choose(of) == 0; }
  int64_t one_of(char letter) {
    const std::span<const int64_t> all = extents_of(letter);
    return all[static_cast<size_t>(choose(static_cast<int>(all.size())))];
  }
  DType same() {  // where no operand has to be a float
    if (!kFloats.has(storage_)) return storage_;
    if (row_.formula || row_.reduction) {
      return takes_bools(row_.id) && chance(3) ? DType::boolean : storage_;
    }
    constexpr DType kOthers[] = {DType::f64, DType::i64, DType::i32,    DType::i8,
                                 DType::u8,  DType::u32, DType::boolean};
    return row_.operands.operands[0].any_shape && chance(3) ? kOthers[choose(7)] : storage_;
  }
  DType id_dtype() {
    constexpr DType kIds[] = {DType::i64, DType::i32, DType::u8, DType::u32};
    return kIds[choose(4)];
  }
  DType any_dtype() {
    return std::array{DType::f32, DType::f16, DType::bf16}[static_cast<size_t>(choose(3))];
  }
  double eps() { return chance(2) ? 1e-5 : 0.125; }
  double normal() {  // Box and Muller: std::normal_distribution differs among libraries
    const auto uniform = [&] { return (engine_() + 0.5) * 0x1p-32; };
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  int64_t extent(char letter);
  Shape shape_of(const Operand& it);
  DType dtype_of(const Operand& it);
  double value(DType dtype);
  int64_t whole(DType dtype);
  Tensor made(DType dtype, const Shape& shape);

  const OpRow& row_;
  const DType storage_;
  const Size size_;
  std::mt19937 engine_;
  const bool transposed_, explicit_mask_, step_;
  const DType gate_;
  const DType same_;
  const bool mostly_zero_;  // of what is reduced to bool
  WindowSample windows_;
  GemmParams gemm_;
  const bool casts_to_storage_;
  const int64_t ignored_;  // label
  const DType code_;       // of quantised keys and values
  std::optional<QuantisedSample> quantised_;
  std::optional<MovedSample> moved_;
  Axes axes_;
  int reduced_ = 1;            // elements of a result
  std::vector<int> repeated_;  // by axis, a bit of each input that is 1 there; empty: none
  std::vector<int64_t> leading_;
  std::map<char, int64_t> extents_;
  int at_ = 0;    // the next operand
  int rank_ = 1;  // of the last one
  Shape scores_;  // what a mask is for
};

int64_t Maker::extent(char letter) {
  const auto known = extents_.find(letter);
  if (known != extents_.end()) return known->second;
  const Signature& s = signature();
  const auto letter_at = [&](int8_t place) {
    return place < 0 ? 0 : s.letters.at(static_cast<size_t>(place));
  };
  int64_t out = one_of(letter);
  if (size_ != Size::several) {
    const bool none = size_ == Size::none && letter == s.operands[0].letters[1];
    out = none ? 0 : letter == 'D' || letter == 'R' ? 2 : 1;
  } else if (letter == letter_at(s.multiple)) {
    out = extent(letter_at(s.divisor)) * (1 + choose(3));
  } else if (letter == 'E' && !chance(3)) {
    out = extent('D');
  } else if (letter == 'R') {
    out = std::min(out, extent('D'));  // rotated columns
  } else if (letter == 'K' && row_.id == OpId::top_k) {
    out = std::min(out, extent('C'));
  } else if (letter == 'V' && has_labels()) {
    out = std::max<int64_t>(out, 2);  // of one class the gradient is 0
  } else if (letter == 'C' && row_.id == OpId::rms_norm_backward) {
    out = std::max<int64_t>(out, 3);  // of one channel all cancels but for eps
  }
  return extents_[letter] = out;
}

Shape Maker::shape_of(const Operand& it) {
  if (row_.id == OpId::causal_mask) {
    const int64_t heads = explicit_mask_ && chance(2) ? 3 : 1;
    return {extent('B'), heads, extent('T'), extent('S')};
  }
  if (moved_) return moved_->shapes[static_cast<size_t>(at_)];
  std::vector<int64_t> out;
  if (it.leading) out = leading_;
  if (it.any_shape) {  // the result of a reduction
    const bool kept = chance(2);
    for (int axis = 0; axis < std::ssize(leading_); ++axis) {
      const bool reduced = axes_.has(axis);
      if (!reduced || kept) out.push_back(reduced ? 1 : leading_[static_cast<size_t>(axis)]);
    }
    if (out.empty()) out = {1};
  }
  for (size_t axis = 0; at_ > 0 && axis < repeated_.size(); ++axis) {
    if (repeated_[axis] >> (at_ - 1) & 1) out[axis] = 1;
  }
  while (!repeated_.empty() && out.size() > 1 && out[0] == 1 && chance(2)) out.erase(out.begin());
  for (int i = 0; i < it.rank; ++i) {
    const Extent& axis = it.axes.at(static_cast<size_t>(i));
    const bool is_number = axis.letter < 0 || (axis.broadcast && chance(2));
    const auto place = static_cast<size_t>(axis.letter);
    out.push_back(is_number ? 1 : axis.number * extent(signature().letters.at(place)));
  }
  return Shape(out);
}

DType Maker::dtype_of(const Operand& it) {
  const bool written = at_ < row_.operands.outputs;
  switch (it.type) {
    case OperandType::i64: return DType::i64;
    case OperandType::boolean: return DType::boolean;
    case OperandType::ids: return id_dtype();
    case OperandType::same: return same_;
    case OperandType::total: return total_of(storage_);
    case OperandType::sums: return sums_of(storage_);
    case OperandType::wide: return DType::f32;
    case OperandType::floating: return gate_;
    case OperandType::codes: return code_;
    case OperandType::any:
      if (row_.id == OpId::cast) {
        return written == casts_to_storage_ ? storage_ : static_cast<DType>(choose(kDTypes));
      }
      if (is_scan()) return step_ ? storage_ : DType::f32;
      return chance(3) ? DType::boolean : storage_;
    default: return storage_;
  }
}

double Maker::value(DType dtype) {
  if (row_.reduction && gives_bool(row_.id)) {
    return chance(reduced_ + 1) != mostly_zero_ ? 0 : dtype == DType::boolean ? 1 : std::nan("");
  }
  if (row_.reduction == Reduction::prod) return 1 + normal() / 32;
  if (row_.reduction && chance(64)) return 2;  // equal ones
  if (signature().operands.at(static_cast<size_t>(at_)).type == OperandType::ids) {
    const int64_t below = moved_ ? moved_->ids_below : extent('V');
    return choose(static_cast<int>(dtype == DType::u8 ? std::min<int64_t>(below, 256) : below));
  }
  if (row_.id == OpId::quantised_sdpa && at_ > 1) {  // codes and scales
    if (dtype == DType::i8) return choose(256) - 128;
    if (signature().operands.at(static_cast<size_t>(at_)).type == OperandType::wide) {
      return (1 + choose(1000)) / (code_ == DType::i8 ? 32000.0 : 1000.0);
    }
  }
  if (dtype == DType::boolean) return chance(2);
  if (has_labels() && dtype == DType::i64) {
    return chance(4) ? static_cast<double>(ignored_) : choose(static_cast<int>(extent('V')));
  }
  if (dtype == DType::i64) return choose(3000);
  if (!is_floating(dtype)) return choose(100);
  if (row_.id == OpId::top_k && chance(2)) return choose(3);  // many are equal
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (signature().operands.at(static_cast<size_t>(at_)).name == "mask" && chance(4)) {
    return -kInfinity;
  }
  if (gives_bool(row_.id)) return choose(5) < 4 ? choose(4) - 2 : std::nan("");  // many are equal
  const bool moves = row_.bits == OpBits::exact && (moved_ || row_.id == OpId::top_k);
  if ((row_.formula || moves) && chance(16)) {
    const double special[] = {0, -0.0, kInfinity, -kInfinity, std::nan("")};
    return special[choose(5)];
  }
  return normal();
}

// Of a call of whole numbers: small ones, of which many are equal, and what wraps around.
int64_t Maker::whole(DType dtype) {
  if (row_.reduction && gives_bool(row_.id)) return value(dtype) != 0;
  const int choice = choose(16);
  if (choice == 0) return INT64_MIN >> choose(64);
  if (choice == 1) return INT64_MAX >> choose(64);
  if (choice < 4) return static_cast<int64_t>(uint64_t{engine_()} << 32 | engine_());
  return choose(choice < 10 ? 5 : 400) - (choice < 10 ? 2 : 200);
}

Tensor Maker::made(DType dtype, const Shape& shape) {
  const Tensor out = host_tensor(dtype, shape);
  const OperandType type = signature().operands.at(static_cast<size_t>(at_)).type;
  const bool of_call = type == OperandType::storage || type == OperandType::same ||
                       type == OperandType::sums || type == OperandType::total;
  const bool whole_call = of_call && is_whole(storage_) && dtype != DType::boolean;
  for (int64_t i = 0; i < out.numel(); ++i) {
    char* at = out.data<char>() + i * size_of(dtype);
    if (whole_call) store_number(dtype, at, {true, whole(dtype), 0});
    else store(dtype, at, value(dtype));
  }
  return out;
}

Tensor Maker::argument(Tensor*) {
  if (quantised_) return quantised_->operands.at(static_cast<size_t>(at_++));
  const Operand& it = signature().operands.at(static_cast<size_t>(at_));
  const bool needed = !it.optional || (step_ && it.name == "state");
  if (!needed && chance(2)) return ++at_, Tensor();
  if (it.name == "c") gemm_.beta = chance(2) ? 1 : -0.3125;
  const Shape shape = shape_of(it);
  rank_ = shape.rank();
  if (at_ == 0) scores_ = shape;
  const Tensor out = made(dtype_of(it), shape);
  ++at_;
  return out;
}

// Numbers that every dtype has: no device rounds them.
double Maker::argument(double*) {
  if (row_.number == NumberField::eps) return eps();
  constexpr double kNumbers[] = {1, 0.3125, 2.5, 55.5};
  const double out = kNumbers[choose(4)];
  return row_.number == NumberField::scale && chance(3) ? -out : out;
}

GemmParams Maker::argument(GemmParams*) {
  if (is_whole(storage_)) {
    gemm_.beta = gemm_.beta != 0;
    return gemm_;
  }
  constexpr double kAlphas[] = {1, 0.3125, -2.5};
  gemm_.alpha = kAlphas[choose(3)];
  gemm_.function = argument(static_cast<std::optional<Activation>*>(nullptr));
  return gemm_;
}

GatedRmsNormParams Maker::argument(GatedRmsNormParams*) {
  const int64_t channels = extent('C');
  int64_t groups = 1 + choose(8);
  while (channels % groups != 0) --groups;
  return {eps(), channels / groups};
}

AttentionMask Maker::argument(AttentionMask*) {
  const bool attends =
      row_.id == OpId::sdpa || row_.id == OpId::sdpa_backward || row_.id == OpId::quantised_sdpa;
  const int64_t batch = extent('B'), queries = extent('T'), keys = extent('S');
  AttentionMask out;
  out.fully_masked = chance(2) ? FullyMasked::uniform : FullyMasked::zero;
  if (explicit_mask_) {
    const bool additive = attends && chance(2);
    const Shape whole = {chance(2) ? 1 : batch, chance(2) ? 1 : extent('H'), queries, keys};
    out.explicit_mask = made(additive ? storage_ : DType::boolean, attends ? whole : scores_);
    return out;
  }
  out.causal = chance(2);
  if (chance(2)) out.window = 1 + choose(static_cast<int>(keys));
  out.query_offset = std::max<int64_t>(keys - queries, 0) + choose(3);
  out.key_offset = choose(2);
  if (chance(2)) out.key_valid = made(DType::boolean, {batch, keys});
  return out;
}

bool works_in_place(const OpRow& row) {
  return (row.formula && !gives_bool(row.id) && !has_condition(row.id)) || row.in_place;
}

}  // namespace

std::vector<DType> sampled_dtypes(OpId op) {
  std::vector<DType> out;
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::f64, DType::f8_e4m3, DType::f8_e5m2, DType::i64,
        DType::i32, DType::u32, DType::i8, DType::u8, DType::boolean}) {
    if (row_of(op).dtypes.has(dtype)) out.push_back(dtype);
  }
  return out;
}

std::vector<OpSample> samples_of(OpId op, DType storage,
                                 const std::function<bool(const std::string&)>& wanted) {
  constexpr std::pair<Layout, const char*> kLayouts[] = {{Layout::contiguous, "contiguous"},
                                                         {Layout::padded, "padded"},
                                                         {Layout::exchanged, "exchanged"}};
  const std::string dtype(name_of(storage));
  std::vector<OpSample> out;
  const auto add = [&](const std::string& name, int number, Size size, Layout layout,
                       bool in_place) {
    if (wanted(name))
      out.push_back({name, Maker(op, storage, number, size).call(), layout, in_place});
  };
  const int count = kFloats.has(storage) ? kSamples : kFewSamples;
  const OperandType made = row_of(op).operands.operands[0].type;
  const bool other_result = (made == OperandType::total && total_of(storage) != storage) ||
                            (made == OperandType::sums && sums_of(storage) != storage);
  for (int i = 0; i < count; ++i) {
    const auto& [layout, name] = kLayouts[i % 3];
    const bool in_place = i % 4 == 3 && works_in_place(row_of(op)) && !other_result;
    add(text(dtype, '/', name, in_place ? "-in-place#" : "#", i), i, Size::several, layout,
        in_place);
  }
  add(dtype + "/one", kSamples, Size::one, Layout::contiguous, false);
  add(dtype + "/none", kSamples, Size::none, Layout::contiguous, false);
  return out;
}

}  // namespace plumb
