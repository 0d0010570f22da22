#include "harness/trace/described_output.h"

#include <cmath>
#include <utility>

#include "harness/recording/recording_fields.h"
#include "harness/trace/recorded_case.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Takes one field after the other.
class Fields {
 public:
  explicit Fields(std::span<const double> values) : left_(values) {}

  double number() { return take(1).front(); }
  int64_t count() { return static_cast<int64_t>(number()); }
  std::vector<double> numbers(size_t n) {
    const std::span<const double> out = take(n);
    return {out.begin(), out.end()};
  }
  std::span<const double> take(size_t n) {
    require(n <= left_.size(), "limits", "a record ends ", n - left_.size(), " numbers too early");
    const std::span<const double> out = left_.first(n);
    left_ = left_.subspan(n);
    return out;
  }
  void end() const {
    require(left_.empty(), "limits", "a record has ", left_.size(), " numbers too many");
  }

 private:
  std::span<const double> left_;
};

std::vector<std::string> strings(JsonValue value) {
  std::vector<std::string> out;
  for (const JsonValue item : value.items()) out.emplace_back(item.string());
  return out;
}

std::pair<JsonValue, JsonValue> pair_of(JsonValue value) {
  if (value.size() != 2) value.fail("has ", value.size(), " values, expected 2");
  auto it = value.items().begin();
  const JsonValue first = *it;
  return {first, *++it};
}

ReferenceScales scales_of(JsonValue of) {
  ReferenceScales out;
  out.layout = layout_of(read_extents(of.at("shape")), strings(of.at("axes")));
  out.storage = read_recorded_dtype(of.at("dtype"));
  out.n = of.at("n").integer(0);
  out.valid_rows = of.at("rows").integer(0);
  out.constant = of.at("constant").boolean();
  const JsonValue groups = of.at("groups");
  for (Partition& partition : error_families(out.layout)) {
    const auto [counted, uniform] = pair_of(groups.at(partition.name));
    FamilyScales family;
    family.counted = counted.integer(0);
    family.uniform = uniform.boolean();
    family.partition = std::move(partition);
    out.families.push_back(std::move(family));
  }
  return out;
}

// The partitions of columns that gains are of.
std::vector<GainScales::Family> gain_families(const Layout& layout) {
  std::vector<GainScales::Family> out;
  if (layout.column_axes.empty()) return out;
  GainScales::Family channels;
  channels.name = "channel gain";
  channels.partition = {"channel", {}, {}, layout.columns};
  for (int64_t c = 0; c < layout.columns; ++c) channels.partition.column_part.push_back(c);
  out.push_back(std::move(channels));
  for (const int axis : layout.column_axes) {
    const std::string& name = layout.axes[static_cast<size_t>(axis)];
    if (name != "head" && name != "kv_head") continue;
    GainScales::Family heads;
    heads.name = "head gain";
    heads.partition = along_axis(layout, axis);
    heads.partition.name = "head";
    out.push_back(std::move(heads));
    break;
  }
  return out;
}

}  // namespace

KnownOutput described_output(JsonValue of) {
  KnownOutput out;
  out.scales = scales_of(of);
  const DType storage = out.scales.storage;
  const Layout& layout = out.scales.layout;
  out.valid = of.at("valid").integer(0);
  out.rule.contract.storage = out.rule.contract.multiply = storage;
  out.allowance.spread = read_spread(of.at("spread"), layout.shape, layout.axes, storage, false);
  if (const JsonValue other = of.at("truncated"); !other.is_null()) {
    out.allowance.spread = widest_spread(
        out.allowance.spread, read_spread(other, layout.shape, layout.axes, storage, false));
  }
  const Operations operations = read_operations(of.at("operations"));
  out.rule.leaf = !cascades(operations);
  out.rule.rounds_values_alone = rounds_values_alone(operations);
  const JsonValue ways = of.at("ways");
  if ((size_of(storage) == 2) != (ways.size() > 0)) {
    ways.fail("has ", ways.size(), " ways to round ", name_of(storage));
  }
  for (const JsonValue item : ways.items()) {
    const auto [name, bits] = pair_of(item);
    BitWay way{std::string(name.string()), std::nullopt, {}};
    if (!bits.is_null()) way.bits = read_figures("bits", bits);
    if (out.ways.empty()) way.bits = *out.allowance.spread->find("bits");
    if (!way.bits) way.stages = stages_of(operations);
    out.ways.push_back(std::move(way));
  }
  return out;
}

std::vector<RecordField> record_fields(const KnownOutput& known) {
  std::vector<RecordField> out = {
      {"wrong"}, {"tensor"}, {"element"}, {"element at"}, {"gain"},
  };
  for (const FamilyScales& family : known.scales.families) {
    // the largest error, that over kappa, and of the group where this is: number, error, kappa
    out.push_back({std::string(family.partition.name), 5});
  }
  const auto columns = static_cast<size_t>(known.scales.layout.columns);
  out.push_back({"energy", columns});
  out.push_back({"along", columns});
  // compared with each way: how many differ, whether those are few, the largest distance, the most
  // of one channel
  if (!known.ways.empty()) out.push_back({"bits", 4 * known.ways.size()});
  return out;
}

size_t record_size(const KnownOutput& known) {
  size_t out = 0;
  for (const RecordField& field : record_fields(known)) out += field.count;
  return out;
}

MeasuredOutput read_record(const KnownOutput& known, std::span<const double> values) {
  Fields fields(values);
  MeasuredOutput out;
  out.wrong = fields.count();
  Statistics& statistics = out.figures.statistics;
  statistics.tensor = fields.number();
  statistics.element = fields.number();
  statistics.element_at = fields.count();
  statistics.gain = fields.number();
  for (const FamilyScales& family : known.scales.families) {
    GroupStatistic of;
    of.family = family.partition.name;
    of.value = fields.number();
    of.normalised = fields.number();
    of.worst = fields.count();
    of.worst_value = fields.number();
    of.worst_kappa = fields.number();
    statistics.families.push_back(of);
  }
  const auto columns = static_cast<size_t>(known.scales.layout.columns);
  out.figures.columns.energy = fields.numbers(columns);
  out.figures.columns.along = fields.numbers(columns);
  for (size_t i = 0; i < known.ways.size(); ++i) {
    MeasuredBits bits;
    bits.found.n = known.valid;
    bits.found.differ = fields.count();
    bits.few = fields.number() != 0;
    bits.parts.distance = fields.number();
    bits.parts.crowd = fields.count();
    out.bits.push_back(std::move(bits));
  }
  fields.end();
  return out;
}

std::vector<RecordField> limit_fields(const KnownOutput& known) {
  std::vector<RecordField> out = {{"alike"}};
  for (const GainScales::Family& family : gain_families(known.scales.layout)) {
    out.push_back({family.name, 4 * static_cast<size_t>(family.partition.groups)});
  }
  if (!known.ways.empty()) out.push_back({"moves", known.ways.size()});
  out.push_back({"records", (1 + known.ways.size()) * record_size(known)});
  return out;
}

void read_limits(OutputLimits& limits, std::span<const double> values) {
  const KnownOutput& known = limits.known();
  Fields fields(values);
  const int64_t alike = fields.count();
  std::vector<GainScales::Family> gains = gain_families(known.scales.layout);
  for (GainScales::Family& family : gains) {
    const auto groups = static_cast<size_t>(family.partition.groups);
    for (auto* part : {&family.size, &family.alike, &family.level, &family.rows}) {
      *part = fields.numbers(groups);
    }
    for (const double size : family.size) family.counted += size > 0;
  }
  const std::vector<double> moves = fields.numbers(known.ways.size());
  const size_t size = record_size(known);
  MeasuredOutput reference = read_record(known, fields.take(size));
  std::vector<MeasuredOutput> models;
  for (size_t i = 0; i < known.ways.size(); ++i) {
    models.push_back(read_record(known, fields.take(size)));
  }
  fields.end();
  limits.set(alike, std::move(gains), std::move(reference), std::move(models), moves);
}

}  // namespace plumb::harness
