#include "harness/cli/model_options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::unique_ptr<Device> open_one(const ModelOptions& options) {
  auto devices = open_devices(options.device, "", options.threads);
  require(devices.size() == 1, "--device", "names ", devices.size(),
          " devices; a model runs on one");
  Ops& ops = devices[0]->ops();
  ops.force(options.impl);
  if (options.no_fuse) ops.set_fused({});
  return std::move(devices[0]);
}

DType run_dtype(const ModelOptions& options, const ModelFolder& folder, const Device& device) {
  if (!options.dtype.empty()) return parse_dtype(options.dtype);
  return device.name() == "oracle" ? DType::f64 : folder.dtype();
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--model", options.model,
                 "folder with config.json and safetensors, or a recording; tiny, tiny:gemma2-a4")
      ->required();
  app.add_option(
         "--tokens", options.tokens,
         "ids 1,2,3, or a file with one sequence per line; shorter ones are padded on their left")
      ->required();
  app.add_option("--device", options.device, "one device, as harness devices names them")
      ->capture_default_str();
  add_dtype(app, options.dtype, "f32, f16, bf16; default: the model's own");
  app.add_option("--threads", options.threads, "CPU threads; 0: one per core")
      ->capture_default_str();
  app.add_option("--impl", options.impl, "force implementations, as for verifying");
  app.add_flag("--no-fuse", options.no_fuse, "run fused ops as compositions");
  app.add_option("--json", options.json, "write JSON lines to this file");
  options.worker.timeout = 3600;  // for loading, and for each part of the tokens
  add_worker_options(app, options.worker);
}

OpenedModel::OpenedModel(const ModelOptions& options, int64_t room, const Step& step)
    : tokens((step("loading the model for " + options.device), read_tokens(options.tokens))),
      padding(pad_left(tokens)),
      folder(find_model(options.model)),
      device(open_one(options)),
      dtype(run_dtype(options, folder, *device)),
      inference(folder, *device, dtype, static_cast<int64_t>(tokens.size()),
                static_cast<int64_t>(tokens[0].size()) + room, padding, !options.eager) {}

std::string model_json(const OpenedModel& opened) {
  const nlohmann::ordered_json line = {{"type", "model"},
                                       {"model", opened.folder.path().string()},
                                       {"device", opened.device->name()},
                                       {"description", opened.device->describe()},
                                       {"dtype", name_of(opened.dtype)},
                                       {"weight_bytes", opened.folder.bytes()}};
  return line.dump();
}

}  // namespace plumb::harness
