#include "harness/recording/recording_checkpoint.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "blocks/catalog.h"
#include "harness/io/printable.h"
#include "harness/recording/inside.h"
#include "harness/recording/recording_alternatives.h"
#include "harness/recording/recording_chain.h"
#include "harness/recording/recording_fields.h"
#include "harness/recording/sampled.h"

namespace plumb::harness {
namespace {

// Native ones, `op` among them, and `module`: any call that has none.
const std::vector<std::string_view>& known_blocks() {
  static const std::vector<std::string_view> blocks = [] {
    std::vector<std::string_view> out = {"module", blocks::kOpBlock};
    for (const blocks::BlockEntry& entry : blocks::block_catalog()) out.push_back(entry.name);
    return out;
  }();
  return blocks;
}

constexpr std::array<std::string_view, 4> kReserved = {"direction", "quant", "shard", "margins"};

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostElements = int64_t{1} << 31;  // of an output, though few rows are stored

class CheckpointReader {
 public:
  CheckpointReader(JsonValue value, const RecordingHeader& header)
      : value_(value), header_(header) {}
  Checkpoint read();

 private:
  const TensorInfo& resolve(JsonValue key);
  TensorRef read_ref(JsonValue value);
  std::string read_block(JsonValue value) const;
  std::shared_ptr<const Operations> read_trace(JsonValue trace);
  OutputRef read_output(JsonValue value);
  ModelRef read_model(JsonValue field, const TensorInfo& output);
  std::optional<std::string> read_delta(JsonValue field, const TensorInfo& output);
  void check_valid(JsonValue field, const TensorRef& valid, const OutputRef& output);
  std::string read_table(JsonValue key, DType dtype, const Shape& shape);
  SampledRef read_sampled(JsonValue output, const OutputRef& ref, const Shape& shape);

  JsonValue value_;
  const RecordingHeader& header_;
  Checkpoint checkpoint_;
};

const TensorInfo& CheckpointReader::resolve(JsonValue key) {
  const std::string name(key.string());
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    key.fail("is ", printable(name), ", which the table of tensors does not have");
  }
  return found->second;
}

TensorRef CheckpointReader::read_ref(JsonValue value) {
  value.only({"tensor", "axes"});
  const JsonValue tensor = value.at("tensor");
  const TensorInfo& info = resolve(tensor);
  std::string key(tensor.string());
  std::vector<std::string> axes = read_axes(value.at("axes"), key, info.shape);
  return {std::move(key), std::move(axes)};
}

// One per axis, of letters, digits, "_" and "-": a text shows them as they are.
std::vector<std::string> read_labels(JsonValue field, const Shape& shape) {
  constexpr std::string_view kOthers = "_-";
  constexpr size_t kLongestLabel = 64;
  std::vector<std::string> out;
  for (const JsonValue item : field.items()) {
    const std::string label(item.string());
    const bool plain = std::all_of(label.begin(), label.end(), [&](char c) {
      const bool letter = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
      return letter || ('0' <= c && c <= '9') || kOthers.find(c) != std::string_view::npos;
    });
    if (!plain || label.size() > kLongestLabel) {
      item.fail("is ", printable(label), ", expected at most ", kLongestLabel,
                " letters, digits, _ and -");
    }
    out.push_back(label);
  }
  if (std::ssize(out) != shape.rank()) {
    field.fail("has ", out.size(), " labels, the output has ", shape.rank(), " axes");
  }
  return out;
}

// The key of a distance from the reference, or nothing for null.
std::optional<std::string> CheckpointReader::read_delta(JsonValue field, const TensorInfo& output) {
  if (field.is_null()) return std::nullopt;
  const TensorInfo& delta = resolve(field);
  if (delta.dtype != DType::f32 || !(delta.shape == output.shape)) {
    field.fail("is ", field.string(), ", ", name_of(delta.dtype), ' ', delta.shape,
               ", expected f32 ", output.shape, " as the output has");
  }
  return std::string(field.string());
}

// The mask's axes are among the output's, each of the output's extent or of extent 1.
void CheckpointReader::check_valid(JsonValue field, const TensorRef& valid,
                                   const OutputRef& output) {
  const TensorInfo& mask = header_.tensors.at(valid.tensor);
  const TensorInfo& whole = header_.tensors.at(output.tensor);
  if (mask.dtype != DType::boolean) {
    field.at("tensor").fail("is ", valid.tensor, " of ", name_of(mask.dtype), ", expected bool");
  }
  for (int axis = 0; axis < mask.shape.rank(); ++axis) {
    const std::string& name = valid.axes[static_cast<size_t>(axis)];
    const auto found = std::find(output.axes.begin(), output.axes.end(), name);
    if (found == output.axes.end()) {
      field.at("axes").fail("has ", name, ", which the output's axes do not have");
    }
    const int64_t expected = whole.shape[static_cast<int>(found - output.axes.begin())];
    if (mask.shape[axis] != 1 && mask.shape[axis] != expected) {
      field.at("tensor").fail("is ", valid.tensor, ' ', mask.shape, " with extent ",
                              mask.shape[axis], " for ", name, ", expected 1 or ", expected);
    }
  }
}

// The key of a tensor that must have this dtype and shape.
std::string CheckpointReader::read_table(JsonValue key, DType dtype, const Shape& shape) {
  const TensorInfo& info = resolve(key);
  if (info.dtype != dtype || !(info.shape == shape)) {
    key.fail("is ", key.string(), ", ", name_of(info.dtype), ' ', info.shape, ", expected ",
             name_of(dtype), ' ', shape);
  }
  return std::string(key.string());
}

// `rows` and `sketch` of an output whose tensor has the shape `shape`.
SampledRef CheckpointReader::read_sampled(JsonValue output, const OutputRef& ref,
                                          const Shape& shape) {
  const JsonValue rows = output.at("rows"), sketch = output.at("sketch");
  rows.only({"tensor", "of"});
  sketch.only({"reference", "oracle", "rms"});
  if (const auto valid = output.find("valid"))
    valid->fail("cannot be combined with rows, which need none");
  const int axis = token_axis(ref.axes);
  if (axis < 0) rows.fail("needs an axis token or kv_token, the output has none");
  SampledRef out;
  const int64_t chosen = shape[axis];
  out.tokens = read_table(rows.at("tensor"), DType::i64, {chosen});
  if (shape.numel() == 0) rows.fail("chooses rows of an output of ", shape, ", which is empty");
  out.of = rows.at("of").integer(chosen, kMostTokens);
  const auto batch = std::find(ref.axes.begin(), ref.axes.end(), "batch");
  const int64_t entries =
      batch == ref.axes.end() ? 1 : shape[static_cast<int>(batch - ref.axes.begin())];
  if (shape.numel() / chosen > kMostElements / out.of) {
    rows.at("of").fail("is ", out.of, ", which makes an output of more than ", kMostElements,
                       " elements of ", shape);
  }
  const int64_t all = entries * out.of;
  out.reference = read_table(sketch.at("reference"), DType::f64, {all, kSketchWidth});
  out.oracle = read_table(sketch.at("oracle"), DType::f64, {all, kSketchWidth});
  out.rms = read_table(sketch.at("rms"), DType::f64, {all});
  return out;
}

ModelRef CheckpointReader::read_model(JsonValue field, const TensorInfo& output) {
  const bool narrow = size_of(output.dtype) == 2 && is_floating(output.dtype);
  if (!narrow) field.fail("is in an output of ", name_of(output.dtype), ", expected f16 or bf16");
  if (field.is_null()) return {};
  field.only({"at", "values"});
  const JsonValue at = field.at("at");
  const TensorInfo& positions = resolve(at);
  const bool whole = positions.dtype == DType::i32 || positions.dtype == DType::i64;
  if (!whole || positions.shape.rank() != 1) {
    at.fail("is ", at.string(), ", ", name_of(positions.dtype), ' ', positions.shape,
            ", expected i32 or i64 of one dimension");
  }
  return {std::string(at.string()), read_table(field.at("values"), output.dtype, positions.shape)};
}

std::string CheckpointReader::read_block(JsonValue value) const {
  const std::string_view kind = value.string(), forward = forward_of(kind);
  const std::vector<std::string_view>& known = known_blocks();
  if (forward.empty() || std::find(known.begin(), known.end(), forward) == known.end()) {
    return std::string(read_one_of(value, known));
  }
  if (header_.version < kWithBackward) {
    value.fail("is ", kind, ", which belongs to version ", kWithBackward, ", version is ",
               header_.version);
  }
  return std::string(kind);
}

std::shared_ptr<const Operations> CheckpointReader::read_trace(JsonValue trace) {
  const auto found = header_.traces.find(std::string(trace.string()));
  if (found == header_.traces.end()) {
    trace.fail("is ", printable(trace.string()), ", which traces does not list");
  }
  return found->second;
}

OutputRef CheckpointReader::read_output(JsonValue value) {
  value.only({"tensor", "delta", "error", "axes", "valid", "chained_delta", "rows", "sketch",
              "model", "spread", "truncated", "unstable", "members", "undecidable",
              "ill_conditioned", "legal", "left_out", "labels", "trace"});
  refuse_before(kWithTraces, value, header_.version,
                {"model", "spread", "truncated", "unstable", "members", "undecidable",
                 "ill_conditioned", "legal", "left_out", "labels", "trace"});
  OutputRef output;
  const JsonValue tensor = value.at("tensor");
  const TensorInfo& info = resolve(tensor);
  output.tensor = tensor.string();
  output.axes = read_axes(value.at("axes"), output.tensor, info.shape);
  if (const auto labels = value.find("labels")) output.labels = read_labels(*labels, info.shape);
  output.delta = read_delta(value.at("delta"), info);
  if (const auto chained = value.find("chained_delta")) {
    output.chained = ChainedRef{read_delta(*chained, info)};
  }
  const JsonValue error = value.at("error");
  output.error = error.number_or_name();
  if (output.error < 0) error.fail("is ", output.error, ", expected at least 0");
  if (value.find("rows") || value.find("sketch")) {
    output.sampled = read_sampled(value, output, info.shape);
  }
  if (const auto valid = value.find("valid")) {
    output.valid = read_ref(*valid);
    check_valid(*valid, *output.valid, output);
  }
  if (const auto model = value.find("model")) output.model = read_model(*model, info);
  const auto read_simulated = [&](JsonValue spread) {
    return read_spread(spread, info.shape, output.axes, info.dtype, output.sampled.has_value());
  };
  if (const auto spread = value.find("spread")) output.spread = read_simulated(*spread);
  if (const auto spread = value.find("truncated")) {
    if (size_of(info.dtype) != 2) {
      spread->fail("is in an output of ", name_of(info.dtype), ", expected f16 or bf16");
    }
    output.truncated = read_simulated(*spread);
  }
  if (const auto unstable = value.find("unstable")) {
    output.unstable = unstable->number_or_name();
    if (!(output.unstable > 0)) unstable->fail("is ", output.unstable, ", expected more than 0");
  }
  if (const auto members = value.find("members")) {
    output.members = read_members(*members, info, header_);
  }
  if (const auto choices = value.find("undecidable")) {
    output.undecidable = read_mask(*choices, info, true, header_);
  }
  if (const auto rows = value.find("ill_conditioned")) {
    output.ill_conditioned = read_mask(*rows, info, false, header_);
  }
  output.operations = checkpoint_.operations;
  if (const auto trace = value.find("trace")) {
    if (!checkpoint_.operations) trace->fail("is in a checkpoint without trace");
    output.operations = read_trace(*trace);
  }
  if (const auto left_out = value.find("left_out")) output.left_out = left_out->integer(1);
  if (const auto legal = value.find("legal")) {
    if (!output.undecidable) legal->fail("needs undecidable, which is missing");
    output.legal = read_legal(*legal, info, header_);
  }
  return output;
}

Checkpoint CheckpointReader::read() {
  value_.only({"id", "block", "path", "function", "call", "step", "contract", "params", "inputs",
               "weights", "outputs", "direction", "quant", "shard", "margins", "amplification",
               "trace", "bugs", "remarks"});
  refuse_before(kWithTraces, value_, header_.version, {"trace", "bugs"});
  refuse_before(kWithBackward, value_, header_.version, {"remarks"});
  Checkpoint& c = checkpoint_;
  for (const std::string_view field : kReserved) {
    if (value_.find(field)) c.reserved.emplace_back(field);
  }
  c.id = read_name(value_.at("id"));
  c.block = read_block(value_.at("block"));
  const bool backward = !forward_of(c.block).empty();
  c.path = value_.at("path").string();
  if (const auto function = value_.find("function")) c.function = read_name(*function);
  c.call = value_.at("call").integer(0);
  c.step = value_.at("step").integer(0);
  const std::string id = text(c.path, c.function.empty() ? "" : ":", c.function, '#', c.call,
                              backward ? "/backward" : "");
  if (c.id != id) {
    value_.at("id").fail("is ", printable(c.id), ", but path, function and call give ",
                         printable(id));
  }
  const JsonValue contract = value_.at("contract");
  c.contract = contract.string();
  if (header_.contracts.count(c.contract) == 0) {
    contract.fail("is ", printable(c.contract), ", which contracts does not list");
  }
  if (const auto trace = value_.find("trace")) c.operations = read_trace(*trace);
  if (const auto inside = header_.inside.find(c.contract); inside != header_.inside.end()) {
    c.inside = inside->second;
    if (!c.operations) {
      contract.fail("allows ", words_listed(c.inside),
                    ", which simulated kernels have to show: there is no trace");
    }
  }
  c.params =
      read_params(value_.at("params"), text(value_.document().name(), ": ", c.id, ": params"));
  for (const JsonMember member : value_.at("inputs").members()) {
    c.inputs.emplace(read_key(member), read_ref(member.value));
  }
  for (const JsonMember member : value_.at("weights").members()) {
    resolve(member.value);
    c.weights.emplace(read_key(member), member.value.string());
  }
  for (const JsonMember member : value_.at("outputs").members()) {
    const std::string name = read_key(member);
    c.outputs.emplace(name, read_output(member.value));
  }
  if (const auto amplification = value_.find("amplification")) {
    c.amplification = amplification->number();
    if (!(*c.amplification >= 0)) {
      amplification->fail("is ", *c.amplification, ", expected at least 0");
    }
  }
  if (const auto remarks = value_.find("remarks")) {
    if (!backward) remarks->fail("is in a checkpoint of block ", c.block, ", which is no backward");
    for (const JsonValue remark : remarks->items()) c.remarks.emplace_back(remark.string());
  }
  if (const auto bugs = value_.find("bugs")) c.bugs = read_bugs(*bugs, c.outputs, header_);
  if (c.outputs.empty()) value_.at("outputs").fail("is empty, expected at least one output");
  return std::move(checkpoint_);
}

}  // namespace

blocks::Params::Value read_param(JsonValue value, const std::string& where) {
  switch (value.kind()) {
    case JsonValue::Kind::null: return blocks::Params::Null{};
    case JsonValue::Kind::boolean: return value.boolean();
    case JsonValue::Kind::integer:
    case JsonValue::Kind::number: return value.number();
    case JsonValue::Kind::object: return read_params(value, where);
    case JsonValue::Kind::string: {
      const std::string_view string = value.string();
      if (string == "inf" || string == "-inf" || string == "nan") return value.number_or_name();
      return std::string(string);
    }
    case JsonValue::Kind::array: break;
  }
  std::vector<double> numbers;
  for (const JsonValue item : value.items()) numbers.push_back(item.number_or_name());
  return numbers;
}

blocks::Params read_params(JsonValue value, const std::string& where) {
  blocks::Params params(where);
  for (const JsonMember member : value.members()) {
    const std::string name = read_key(member);
    params.set(name, read_param(member.value, where + '.' + name));
  }
  return params;
}

std::vector<Checkpoint> read_checkpoints(JsonValue checkpoints, const RecordingHeader& header,
                                         std::vector<std::string>* findings) {
  std::vector<Checkpoint> result;
  std::unordered_set<std::string> ids;
  for (const JsonValue value : checkpoints.items()) {
    try {
      Checkpoint read = CheckpointReader(value, header).read();
      if (!ids.insert(read.id).second) {
        value.at("id").fail("is ", printable(read.id), ", which an earlier checkpoint has");
      }
      result.push_back(std::move(read));
    } catch (const BadInput& error) {
      if (!findings) throw;
      findings->emplace_back(error.what());
    }
  }
  if (!findings || findings->empty()) check_chain(result, checkpoints);
  return result;
}

}  // namespace plumb::harness
