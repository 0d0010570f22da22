#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/capi/answered.h"
#include "harness/capi/plumbline_judge.h"
#include "harness/io/json.h"
#include "harness/judge/output_limits.h"
#include "harness/judge/spread_limit.h"
#include "harness/replay/result_json.h"
#include "harness/trace/described_output.h"
#include "harness/trace/explained_output.h"
#include "kernels/core/error.h"

struct PlumblineLimits {
  explicit PlumblineLimits(plumb::harness::KnownOutput known) : of(std::move(known)) {}

  plumb::harness::OutputLimits of;
};

namespace plumb::harness {
namespace {

// A row of ratios. The rest are gates by name.
constexpr std::string_view kRow[] = {"margin",      "accurate",     "classes",      "tensor",
                                     "token",       "token x head", "channel",      "tile",
                                     "element",     "gain",         "channel gain", "head gain",
                                     "conformance", "ulp",          "channel bits"};

std::string joined_row() {
  std::string out;
  for (const std::string_view name : kRow) out.append(out.empty() ? "" : "\n").append(name);
  return out;
}

std::string fields_text(const std::vector<RecordField>& fields) {
  std::string out;
  for (const RecordField& field : fields) {
    out += text(out.empty() ? "" : ", ", "[\"", field.name, "\", ", field.count, ']');
  }
  return '[' + out + ']';
}

std::string answer_of(const OutputLimits& limits) {
  const KnownOutput& known = limits.known();
  std::string noise;
  for (const BitWay& way : known.ways) {
    const ConformanceRule rule = rule_of(way, known.rule, known.scales.layout.columns);
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, noise_of_sums(rule)).ptr;
    noise.append(noise.empty() ? "" : ", ").append(digits, end);
  }
  return text("{\"record\": ", fields_text(record_fields(known)),
              ", \"limits\": ", fields_text(limit_fields(known)), ", \"noise\": [", noise,
              "], \"alike\": ", limits.has_bits() && known.rule.leaf ? "true" : "false", '}');
}

void judge_record(const OutputLimits& limits, std::span<const double> record, double* row) {
  const MeasuredOutput y = read_record(limits.known(), record);
  std::fill_n(row, std::size(kRow), std::numeric_limits<double>::quiet_NaN());
  const std::vector<Gate> gates = limits.gates(y);
  row[0] = margin(gates);
  for (const Gate& gate : gates) {
    const auto* at = std::find(std::begin(kRow), std::end(kRow), gate.name);
    require(at != std::end(kRow), "limits", "gate ", gate.name, " has no place in a row");
    row[at - kRow] = ratio(gate);
  }
}

}  // namespace
}  // namespace plumb::harness

namespace ph = plumb::harness;

int plumbline_limits_new(const char* description, PlumblineLimits** limits, char** text) {
  if (limits) *limits = nullptr;
  return ph::answered(text, [&] {
    plumb::require(description && limits, "plumbline_limits_new", "a pointer is NULL");
    const auto document = ph::JsonDocument::parse("the description of an output", description);
    auto made = std::make_unique<PlumblineLimits>(ph::described_output(document->root()));
    std::string answer = ph::answer_of(made->of);
    *limits = made.release();
    return answer;
  });
}

int plumbline_limits_set(PlumblineLimits* limits, const double* values, size_t count, char** text) {
  return ph::answered(text, [&] {
    plumb::require(limits && values, "plumbline_limits_set", "a pointer is NULL");
    ph::read_limits(limits->of, {values, count});
    return std::string();
  });
}

const char* plumbline_limits_gates() {
  static const std::string names = ph::joined_row();
  return names.c_str();
}

int plumbline_limits_judge(const PlumblineLimits* limits, const double* records, size_t count,
                           double* ratios, char** text) {
  return ph::answered(text, [&] {
    plumb::require(limits && records && ratios, "plumbline_limits_judge", "a pointer is NULL");
    const size_t size = ph::record_size(limits->of.known());
    for (size_t i = 0; i < count; ++i) {
      ph::judge_record(limits->of, {records + i * size, size}, ratios + i * std::size(ph::kRow));
    }
    return std::string();
  });
}

int plumbline_limits_explain(PlumblineLimits* limits, const double* record, const char* details,
                             const double* along, size_t count, char** text) {
  return ph::answered(text, [&] {
    plumb::require(limits && record && details && (along || count == 0), "plumbline_limits_explain",
                   "a pointer is NULL");
    const auto document = ph::JsonDocument::parse("the details of an output", details);
    const size_t size = ph::record_size(limits->of.known());
    return ph::explained_json(
        ph::explained_output(limits->of, {record, size}, document->root(), {along, count}));
  });
}

double plumbline_limits_element(const PlumblineLimits* limits) {
  return limits->of.element_limit();
}

void plumbline_kappas(const double* sizes, size_t groups, double* kappas) {
  const auto counted = groups - static_cast<size_t>(std::count(sizes, sizes + groups, 0.0));
  for (size_t g = 0; g < groups; ++g) {
    kappas[g] = ph::kappa(static_cast<int64_t>(sizes[g]), static_cast<int64_t>(counted));
  }
}

int plumbline_no_less_accurate(double error, double of_reference, const char* dtype) {
  const auto storage = plumb::dtype_from_name(dtype);
  return storage && ph::tensor_no_less_accurate(error, of_reference, *storage);
}

double plumbline_spread_limit(double mean, double deviation, int narrow) {
  return ph::spread_limit({"", mean, deviation, mean},
                          narrow ? plumb::DType::bf16 : plumb::DType::f32);
}

double plumbline_bits_limit(double mean, double deviation, double largest) {
  return std::max(ph::kLimits.conformance_count,
                  ph::bits_limit({"bits", mean, deviation, largest}));
}

int64_t plumbline_least_bits() { return ph::kLimits.conformance_least; }

void plumbline_limits_free(PlumblineLimits* limits) { delete limits; }
