#include "harness/recording/recording_trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/io/printable.h"
#include "harness/recording/layout.h"
#include "harness/recording/recording_fields.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kMostRuns = 1 << 16;

Operation read_operation(JsonValue value) {
  value.only({"op", "stores", "terms", "fed"});
  Operation out{read_name(value.at("op")), read_recorded_dtype(value.at("stores"))};
  if (!is_floating(out.stores)) {
    value.at("stores").fail("is ", name_of(out.stores), ", expected a float dtype");
  }
  if (const auto terms = value.find("terms")) out.terms = terms->integer(2);
  if (const auto fed = value.find("fed")) {
    if (out.terms == 1) fed->fail("needs terms: only sums have it");
    out.fed = fed->boolean();
  }
  return out;
}

int64_t index_at(const Tensor& indices, int64_t i) {
  return indices.dtype() == DType::i32 ? indices.data<int32_t>()[i] : indices.data<int64_t>()[i];
}

double read_statistic(JsonValue value) {
  const double out = value.number_or_name();
  if (!(out >= 0) && !std::isnan(out)) value.fail("is ", out, ", expected at least 0");
  return out;
}

}  // namespace

SpreadOf read_figures(const std::string& gate, JsonValue value) {
  std::vector<double> numbers;
  for (const JsonValue item : value.items()) numbers.push_back(read_statistic(item));
  if (numbers.size() != 3) {
    value.fail("has ", numbers.size(), " numbers, expected 3: mean, deviation and largest");
  }
  return {gate, numbers[0], numbers[1], numbers[2]};
}

Operations read_operations(JsonValue list) {
  Operations out;
  for (const JsonValue item : list.items()) out.push_back(read_operation(item));
  return out;
}

std::map<std::string, std::shared_ptr<const Operations>> read_traces(JsonValue traces) {
  std::map<std::string, std::shared_ptr<const Operations>> out;
  for (const JsonMember member : traces.members()) {
    const std::string key = read_key(member);
    const bool known = key.size() > 1 && key[0] == 'p' &&
                       key.find_first_not_of("0123456789", 1) == std::string::npos;
    if (!known) member.value.fail("its key is ", printable(key), ", expected p<number>");
    member.value.only({"operations"});
    out.emplace(key,
                std::make_shared<const Operations>(read_operations(member.value.at("operations"))));
  }
  return out;
}

Spread read_spread(JsonValue value, const Shape& shape, const std::vector<std::string>& axes,
                   DType dtype, bool sampled) {
  std::vector<std::string> expected = {"tensor", "element", "gain"};
  for (const Partition& family : error_families(layout_of(shape, axes))) {
    expected.emplace_back(family.name);
  }
  if (size_of(dtype) == 2) expected.emplace_back("bits");
  if (sampled) expected.emplace_back("sketch");
  Spread out;
  out.runs = value.at("runs").integer(1, kMostRuns);
  for (const std::string& gate : expected) out.gates.push_back(read_figures(gate, value.at(gate)));
  for (const char* name : {"ulp", "channel bits"}) {  // that older recordings lack
    const auto figures = size_of(dtype) == 2 ? value.find(name) : std::nullopt;
    if (figures) out.gates.push_back(read_figures(name, *figures));
  }
  for (const JsonMember member : value.members()) {
    const std::string name = read_key(member);
    if (name == "runs" || out.find(name)) continue;
    member.value.fail("is of ", printable(name), ", which this output has no gate for");
  }
  return out;
}

std::string narrowed_by(const Operations& operations, DType dtype) {
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    if (size_of(operation.stores) >= size_of(dtype) || !is_floating(operation.stores)) continue;
    return text("operation ", i + 1, " of ", operations.size(), " of the recorded run, ",
                operation.op, ", stores ", name_of(operation.stores));
  }
  return {};
}

void check_ascending(const Tensor& indices, int64_t end, const std::string& where) {
  int64_t least = 0;
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const int64_t index = index_at(indices, i);
    if (index < least || index >= end) {
      throw BadInput(text(where, ": ", index, " is number ", i, ", expected ", least, " to ",
                          end - 1, ", ascending; record it again"));
    }
    least = index + 1;
  }
}

Tensor rounded_model(const Tensor& reference, const Tensor& at, const Tensor& values,
                     const std::string& where) {
  const Tensor out = host_tensor(reference.dtype(), reference.shape());
  std::memcpy(out.raw(), reference.raw(), static_cast<size_t>(reference.bytes()));
  const int64_t size = size_of(reference.dtype());
  check_ascending(at, reference.numel(), where + ".at");
  for (int64_t i = 0; i < at.numel(); ++i) {
    std::memcpy(out.data<char>() + index_at(at, i) * size, values.data<char>() + i * size,
                static_cast<size_t>(size));
  }
  return out;
}

}  // namespace plumb::harness
