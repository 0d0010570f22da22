// harness bench --model: prefill and decode of a whole model.
#include "harness/cli/bench_model.h"

#include <chrono>
#include <iostream>
#include <optional>

#include "harness/bench/random_checkpoint.h"
#include "harness/bench/report.h"
#include "harness/bench/shapes.h"
#include "harness/cli/cli.h"
#include "harness/model/inference.h"
#include "harness/report/reports.h"
#include "harness/report/results_json.h"
#include "kernels/core/error.h"

namespace plumb::harness {

int bench_model(const ModelBenchRequest& request) {
  const DType dtype = parse_dtype(request.dtype);
  ReportFile json("--json", request.json);
  std::optional<RandomCheckpoint> checkpoint;
  if (request.model == "random") {
    const std::string config = find_bench_shape(request.shape).config;
    std::cerr << "writing random weights\n";
    checkpoint.emplace(config, dtype);
  } else {
    require(request.shape.empty(), "--shape", "is \"", request.shape,
            "\", but --model names a folder, which has a shape; only --model random takes one");
  }
  const ModelFolder folder(checkpoint ? checkpoint->folder() : find_model(request.model));
  if (checkpoint) checkpoint->remove();
  const auto devices = open_devices(request.device, "", request.threads);
  require(devices.size() == 1, "--device", "names ", devices.size(),
          " devices; a benchmark runs on one");
  Device& device = *devices[0];
  device.ops().force(request.impl);
  if (!request.fuse) device.ops().set_fused({});
  const auto oracle = open_device("oracle");

  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<blocks::CausalLm> model = folder.load(device, dtype);
  const std::chrono::duration<double> loading = std::chrono::steady_clock::now() - start;
  const ModelBenchResult result = run_model_bench(*model, device, *oracle, request.bench);
  folder.check();
  const ModelBenchLabels labels{checkpoint ? request.shape : folder.path().string(),
                                dtype,
                                request.bench,
                                folder.bytes(),
                                loading.count(),
                                measure_copy(device)};  // takes memory: after the peak is known
  json.write(run_json(run_info({device.name() + ": " + device.describe()})));
  json.write(model_bench_json(result, device, labels));
  json.commit();
  std::cout << device.name() << ": " << device.describe() << "\n"
            << model_bench_text(result, device, labels);
  const int code = run_exit_code({result.status}, false);
  if (code == 0) json.require_whole();
  return code;
}

}  // namespace plumb::harness
