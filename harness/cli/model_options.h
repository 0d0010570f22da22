// What the commands that run whole models have in common.
#pragma once

#include <memory>
#include <string>

#include "harness/model/inference.h"
#include "harness/process/isolated.h"

namespace CLI {
class App;
}

namespace plumb::harness {

struct ModelOptions {
  std::string model, tokens, device = "auto", dtype, impl, json;
  int threads = 0;
  bool no_fuse = false, eager = false;
  WorkerOptions worker;
};

void add_model_options(CLI::App& app, ModelOptions& options);

// The model of the options on their device, with room for `room` more tokens than they have.
struct OpenedModel {
  OpenedModel(const ModelOptions& options, int64_t room, const Step& step);

  TokenRows tokens;  // made equally long
  std::vector<int64_t> padding;
  ModelFolder folder;
  std::unique_ptr<Device> device;
  DType dtype;
  Inference inference;
};

// {"type": "model", ...}: which model ran where.
std::string model_json(const OpenedModel& opened);

}  // namespace plumb::harness
