// harness export RECORDING DIR: operands of checkpoints as plain files, for implementations of any
// kind.
//   DIR/checkpoints.json     what to compute: block, params, operand names -> tensor keys, output
//   shapes DIR/tensors.safetensors  the tensors under those keys
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "harness/cli/cli.h"
#include "harness/execution/execute.h"
#include "harness/io/file.h"
#include "harness/io/json_line.h"
#include "harness/io/safetensors.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

// Params that count something, which programs index and compare with: 5, not 5.0.
constexpr std::string_view kWholeNumbers[] = {"axes",         "axis",
                                              "batch",        "begin",
                                              "block",        "call",
                                              "chunk_size",   "dim",
                                              "end",          "group_size",
                                              "groups",       "head_dim",
                                              "heads",        "kernel",
                                              "key_offset",   "keys",
                                              "length",       "logits_to_keep",
                                              "max_length",   "max_position",
                                              "offset",       "original_max_position",
                                              "padding",      "queries",
                                              "query_offset", "repeats",
                                              "seen",         "state",
                                              "window"};

Json to_json(const blocks::Params& params);

Json number_of(const std::string& name, double x) {
  const bool whole = std::find(std::begin(kWholeNumbers), std::end(kWholeNumbers), name) !=
                         std::end(kWholeNumbers) &&
                     x == std::trunc(x) && std::fabs(x) < 0x1p53;
  return whole ? Json(static_cast<int64_t>(x)) : Json(x);
}

Json to_json(const std::string& name, const blocks::Params::Value& value) {
  struct Visitor {
    const std::string& name;
    Json operator()(blocks::Params::Null) const { return nullptr; }
    Json operator()(bool b) const { return b; }
    Json operator()(double d) const { return number_of(name, d); }
    Json operator()(const std::string& s) const { return s; }
    Json operator()(const std::vector<double>& list) const {
      Json out = Json::array();
      for (double d : list) out.push_back(number_of(name, d));
      return out;
    }
    Json operator()(const std::vector<std::string>& list) const { return list; }
    Json operator()(const blocks::Params& nested) const { return to_json(nested); }
  };
  return std::visit(Visitor{name}, value);
}

Json to_json(const blocks::Params& params) {
  Json out = Json::object();
  for (const auto& [name, value] : params.values()) out[name] = to_json(name, value);
  return out;
}

// The number behind "layers" in a module's path; null elsewhere.
Json layer_of(const std::string& path) {
  static const std::regex layer(R"((^|\.)(layers|h|blocks)\.(\d{1,9})(\.|$))");
  std::smatch found;
  if (!std::regex_search(path, found, layer)) return nullptr;
  return std::stoll(found[3]);
}

// Slot of the first token of every forward call of the model, as its attention or masks have it.
std::map<int64_t, int64_t> first_positions(const Recording& recording) {
  std::map<int64_t, int64_t> out;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    const auto& values = checkpoint.params.values();
    const auto nested = values.find("attention");
    const blocks::Params* attention =
        nested == values.end() ? nullptr : std::get_if<blocks::Params>(&nested->second);
    const auto& where = attention ? attention->values() : values;
    const auto offset = where.find("query_offset");
    const double* first = offset == where.end() ? nullptr : std::get_if<double>(&offset->second);
    if (first) out.try_emplace(checkpoint.step, static_cast<int64_t>(*first));
  }
  return out;
}

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> out;
  for (int i = 0; i < shape.rank(); ++i) out.push_back(shape[i]);
  return out;
}

Json describe(const Recording& recording, const Checkpoint& checkpoint,
              const std::map<int64_t, int64_t>& positions, std::set<std::string>& keys) {
  Json inputs = Json::object(), weights = Json::object(), outputs = Json::object();
  for (const auto& [name, ref] : checkpoint.inputs) {
    inputs[name] = {{"tensor", ref.tensor}, {"axes", ref.axes}};
    keys.insert(ref.tensor);
  }
  for (const auto& [name, key] : checkpoint.weights) {
    weights[name] = key;
    keys.insert(key);
  }
  for (const auto& [name, ref] : checkpoint.outputs) {
    outputs[name] = {{"dtype", name_of(recording.tensor_info(ref.tensor).dtype)},
                     {"shape", extents(recording.output_shape(ref))},
                     {"axes", ref.axes}};
  }
  const auto position = positions.find(checkpoint.step);
  const Json first = position == positions.end() ? Json() : Json(position->second);
  return {{"id", checkpoint.id},
          {"block", checkpoint.block},
          {"path", checkpoint.path},
          {"function", checkpoint.function},
          {"call", checkpoint.call},
          {"step", checkpoint.step},
          {"layer", layer_of(checkpoint.path)},
          {"position", first},
          {"params", to_json(checkpoint.params)},
          {"inputs", inputs},
          {"weights", weights},
          {"outputs", outputs}};
}

int export_checkpoints(const std::string& folder, const std::string& out,
                       const Selection& selection, bool upcast) {
  const Recording recording = open_recording(folder);
  const std::vector<size_t> indices = selected_checkpoints(selection, recording);
  require_some(indices, selection, recording);
  require(!std::filesystem::exists(std::filesystem::path(out) / "recording.json"), "export", out,
          ": is a recording, whose tensors would be lost; name another folder");
  std::set<std::string> keys;
  Json list = Json::array();
  const std::map<int64_t, int64_t> positions = first_positions(recording);
  for (size_t i : indices) {
    list.push_back(describe(recording, recording.checkpoints()[i], positions, keys));
  }

  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& key : keys) {
    Tensor t = recording.read(key);
    if (upcast && is_floating(t.dtype()) && size_of(t.dtype()) < 4) t = converted(t, DType::f32);
    tensors.emplace_back(key, t);
  }
  std::error_code failure;
  std::filesystem::create_directories(out, failure);
  require(!failure, "export", out, ": cannot be created as a folder: ", failure.message());
  const std::filesystem::path target = out;
  write_safetensors(target / "tensors.safetensors", tensors);
  Json document = {
      {"recording", std::filesystem::absolute(recording.folder()).lexically_normal().string()},
      {"dtype", name_of(recording.dtype())},
      {"checkpoints", list}};
  name_what_is_not_finite(document);
  write_file(target / "checkpoints.json", document.dump(1) + "\n");
  std::cout << "wrote " << indices.size() << " checkpoint(s), " << tensors.size()
            << " tensor(s) to " << out
            << "\nname outputs \"<checkpoint id>/<output name>\" in one safetensors file, then: "
            << "harness judge " << folder << " OUTPUTS.safetensors\n";
  return 0;
}

}  // namespace

Action add_export(CLI::App& app) {
  struct Options {
    std::string folder, out;
    Selection selection;
    bool upcast = false;
  };
  auto options = std::make_shared<Options>();
  app.add_option("recording", options->folder, "folder of the recording")->required();
  app.add_option("directory", options->out, "where to write")->required();
  add_narrowing(app, options->selection);
  app.add_flag("--upcast", options->upcast, "write 16-bit floats as exact f32, for NumPy");
  return [options] {
    require_known_blocks(options->selection);
    return export_checkpoints(options->folder, options->out, options->selection, options->upcast);
  };
}

}  // namespace plumb::harness
