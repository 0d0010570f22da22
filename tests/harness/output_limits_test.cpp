// Figures in, verdict out: whoever measures gets the gates that the judge has for the tensors.
#include "harness/judge/output_limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "harness/io/json.h"
#include "harness/recording/recording_trace.h"
#include "harness/trace/described_output.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::made;
using testing::Random;
using testing::rounded;

constexpr const char* kFigures = "[0.001, 0.0001, 0.0013]";
const std::string kOperations =
    R"([{"op": "mm", "stores": "DTYPE", "terms": 48}, {"op": "mul", "stores": "DTYPE"}])";

std::string replaced(std::string words, const std::string& what, const std::string& by) {
  for (size_t at; (at = words.find(what)) != std::string::npos;) words.replace(at, what.size(), by);
  return words;
}

// An output [1, 16, 32] of the shape that made() has, its rounded model m being r.
struct Output {
  OutputCase of;
  CaseArrays arrays;
  ReferenceScales scales;

  explicit Output(DType dtype, double noise, uint64_t seed) {
    Random random(7);
    const std::vector<double> o = random.normals(512);
    std::vector<double> y = rounded(dtype, o);
    Random other(seed);
    for (double& x : y) x *= 1 + noise * other.normal();
    of = case_of(made(dtype), rounded(dtype, y), rounded(dtype, o), o);
    of.rule.composite = true;
    of.rule.stages.clear();
    of.allowance.spread = spread(dtype);
    if (size_of(dtype) == 2) of.evidence.model = of.evidence.reference;
    arrays = load_arrays(of.evidence);
    scales = reference_scales(arrays.layout, arrays.o, arrays.valid, dtype);
  }

  static std::string spread_text(DType dtype) {
    std::string out = R"({"runs": 16)";
    for (const char* name : {"tensor", "token", "channel", "tile", "element", "gain"}) {
      out += text(", \"", name, "\": ", kFigures);
    }
    if (size_of(dtype) == 2) out += R"(, "bits": [3.0, 1.0, 5.0])";
    return out + '}';
  }
  Spread spread(DType dtype) const {
    const auto document = JsonDocument::parse("spread", spread_text(dtype));
    return read_spread(document->root(), of.evidence.y.shape(), of.evidence.axes, dtype, false);
  }

  std::string description() const {
    const DType dtype = of.evidence.y.dtype();
    std::string shape, axes, groups;
    for (int axis = 0; axis < of.evidence.y.rank(); ++axis) {
      shape += text(axis ? ", " : "", of.evidence.y.dim(axis));
      axes += text(axis ? ", \"" : "\"", of.evidence.axes[static_cast<size_t>(axis)], '"');
    }
    for (const FamilyScales& family : scales.families) {
      groups += text(groups.empty() ? "\"" : ", \"", family.partition.name, "\": [", family.counted,
                     family.uniform ? ", true]" : ", false]");
    }
    const bool narrow = size_of(dtype) == 2;
    return text("{\"dtype\": \"", name_of(dtype), "\", \"axes\": [", axes, "], \"shape\": [", shape,
                "], \"n\": ", scales.n, ", \"valid\": 512, \"rows\": ", scales.valid_rows,
                ", \"constant\": false, \"groups\": {", groups,
                "}, \"spread\": ", spread_text(dtype), ", \"truncated\": null, \"operations\": ",
                replaced(kOperations, "DTYPE", std::string(name_of(dtype))), ", \"ways\": [",
                narrow ? "[\"first\", null]" : "", "]}");
  }

  std::vector<double> record(const std::vector<double>& values) const {
    const Figures figures = figures_of(values, scales);
    const Statistics& s = figures.statistics;
    std::vector<double> out = {0, s.tensor, s.element, static_cast<double>(s.element_at), s.gain};
    for (const GroupStatistic& f : s.families) {
      out.insert(out.end(), {f.value, f.normalised, static_cast<double>(f.worst), f.worst_value,
                             f.worst_kappa});
    }
    out.insert(out.end(), figures.columns.energy.begin(), figures.columns.energy.end());
    out.insert(out.end(), figures.columns.along.begin(), figures.columns.along.end());
    if (!of.evidence.model.defined()) return out;
    SmallParts parts;
    const ConformanceRule rule =
        conformance_rule(of.rule, floors(of.rule.contract, {}, 0), arrays.layout.columns);
    const Conformance found = conformance(values, arrays.model, arrays.valid, rule, &parts);
    const bool few = found.differ == 0 || parts.crowd > 0;
    out.insert(out.end(), {static_cast<double>(found.differ), few ? 1.0 : 0.0, parts.distance,
                           static_cast<double>(parts.crowd)});
    return out;
  }
};

OutputLimits limits_of(const Output& output) {
  const auto document = JsonDocument::parse("description", output.description());
  OutputLimits limits(described_output(document->root()));
  std::vector<double> values = {0};  // values that are alike
  const GainScales gains(output.scales);
  for (const GainScales::Family& family : gains.families()) {
    for (const auto* part : {&family.size, &family.alike, &family.level, &family.rows}) {
      values.insert(values.end(), part->begin(), part->end());
    }
  }
  if (output.of.evidence.model.defined()) values.push_back(0);  // it moves nothing
  for (int i = 0; i < (output.of.evidence.model.defined() ? 2 : 1); ++i) {
    const std::vector<double> of_r = output.record(output.arrays.r);
    values.insert(values.end(), of_r.begin(), of_r.end());
  }
  read_limits(limits, values);
  return limits;
}

}  // namespace

TEST_CASE("figures have the gates of the tensors that they are of", "[limits]") {
  const auto [dtype, noise] = GENERATE(table<DType, double>({{DType::f32, 0.0},
                                                             {DType::f32, 1e-7},
                                                             {DType::f32, 1e-2},
                                                             {DType::bf16, 0.0},
                                                             {DType::bf16, 1e-5},
                                                             {DType::bf16, 3e-2}}));
  CAPTURE(name_of(dtype), noise);
  const Output output(dtype, noise, 11);
  const OutputLimits limits = limits_of(output);
  const MeasuredOutput y = read_record(limits.known(), output.record(output.arrays.y));
  const std::vector<Gate> gates = limits.gates(y);
  OutputCase of = output.of;
  if (dtype == DType::bf16) {
    of.allowance.bits = *of.allowance.spread->find("bits");
    of.rule.leaf = true;
  }
  const OutputVerdict verdict = judge(of);
  int compared = 0;
  for (const Gate& expected : verdict.gates) {
    const auto found = std::find_if(gates.begin(), gates.end(),
                                    [&](const Gate& it) { return it.name == expected.name; });
    if (expected.name == "structure" || expected.name == "classes" || expected.name == "padding") {
      continue;
    }
    CAPTURE(expected.name);
    REQUIRE(found != gates.end());
    CHECK(found->statistic == expected.statistic);
    CHECK(found->limit == expected.limit);
    const bool of_bits = expected.name == "conformance" || expected.name == "ulp" ||
                         expected.name == "channel bits";  // whose places are not measured
    CHECK((of_bits || found->where == expected.where));
    ++compared;
  }
  CHECK(compared == static_cast<int>(gates.size()));
  CHECK(compared >= 7);
  CHECK((margin(gates) <= 1) == (verdict.status == Status::pass));
  CHECK((margin(gates) <= 1) == (noise < 1e-4));
}

TEST_CASE("one wrong class is beyond all limits", "[limits]") {
  const Output output(DType::f32, 0, 11);
  const OutputLimits limits = limits_of(output);
  MeasuredOutput y = read_record(limits.known(), output.record(output.arrays.r));
  CHECK(margin(limits.gates(y)) <= 1);
  y.wrong = 1;
  CHECK(std::isinf(margin(limits.gates(y))));
}

TEST_CASE("a way to round may be half as far off again as the reference, or a rounding",
          "[limits]") {
  CHECK(tensor_no_less_accurate(1.5e-2, 1e-2, DType::bf16));
  CHECK_FALSE(tensor_no_less_accurate(1.51e-2, 1e-2, DType::bf16));
  CHECK(tensor_no_less_accurate(0.6 * 0x1p-8, 0, DType::bf16));
  CHECK_FALSE(tensor_no_less_accurate(0.7 * 0x1p-8, 0, DType::bf16));
}

TEST_CASE("an element beyond the loosest limit is beyond that of any way", "[limits]") {
  const Output output(DType::bf16, 3e-2, 11);
  const OutputLimits limits = limits_of(output);
  const MeasuredOutput y = read_record(limits.known(), output.record(output.arrays.y));
  for (const Gate& gate : limits.gates(y)) {
    if (gate.name == "element") CHECK(gate.limit <= limits.element_limit());
  }
}

TEST_CASE("a record of another size is refused", "[limits]") {
  const Output output(DType::f32, 0, 11);
  const OutputLimits limits = limits_of(output);
  std::vector<double> record = output.record(output.arrays.r);
  record.pop_back();
  CHECK(error_text<UsageError>([&] { read_record(limits.known(), record); }) ==
        "[limits] a record ends 1 numbers too early");
  record.resize(record.size() + 2);
  CHECK(error_text<UsageError>([&] { read_record(limits.known(), record); }) ==
        "[limits] a record has 1 numbers too many");
}

TEST_CASE("what feeds a sum cascades", "[limits]") {
  const Operation product{"mm", DType::bf16, 48}, silu{"silu", DType::bf16, 1};
  CHECK_FALSE(cascades({product, silu}));
  CHECK(cascades({silu, product}));
  CHECK_FALSE(cascades({{"mul", DType::f32, 1}, product}));
  CHECK(cascades({{"_scaled_dot_product_attention", DType::bf16, 48}}));
  const Operation other{"mm", DType::bf16, 48, false};
  CHECK_FALSE(cascades({silu, other}));
  CHECK(cascades({silu, other, product}));
}

}  // namespace plumb::harness
