// The command line: one file per subcommand. Each adds its options to an App and says what to run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/recording/select.h"
#include "harness/result/result.h"
#include "harness/run/worker.h"
#include "kernels/core/device.h"
#include "kernels/ops/table.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace plumb::harness {

using Action = std::function<int()>;  // returns the exit code

// The default command: verify recordings on devices.
Action add_verify(CLI::App& app);
Action add_list(CLI::App& app);
Action add_devices(CLI::App& app);
Action add_compare_devices(CLI::App& app);
Action add_support(CLI::App& app);
Action add_show(CLI::App& app);
Action add_export(CLI::App& app);
Action add_judge(CLI::App& app);
Action add_summary(CLI::App& app);
Action add_bench(CLI::App& app);
Action add_tune(CLI::App& app);
Action add_forward(CLI::App& app);
Action add_generate(CLI::App& app);
Action add_plugin_flags(CLI::App& app);
Action add_help(CLI::App& app);
Action add_completion(CLI::App& app);

// Accepts numbers in [low, high]; CLI::Range takes "nan", too.
CLI::Validator between(double low, double high);

// --dtype, by our names or torch's.
void add_dtype(CLI::App& app, std::string& dtype, const std::string& about);
// --fixture, which needs no name in front, --block, --checkpoint.
void add_selection(CLI::App& app, const std::shared_ptr<Selection>& selection);
// --block and --checkpoint alone.
void add_narrowing(CLI::App& app, Selection& selection);

// The names in --device, a comma-separated list; "auto" in it becomes the first usable device,
// which is said on stderr with the reason. `priority` orders auto: a list, or empty for
// PLUMB_DEVICES or the built-in order. Opens nothing in this process.
std::vector<std::string> device_names(const std::string& devices, const std::string& priority);

// --no-worker and --timeout.
void add_worker_options(CLI::App& app, WorkerOptions& options);
// A worker for each of the named devices, which have opened them. A device that cannot be used is a
// DeviceError with its reason, one that is named twice a UsageError.
std::vector<std::unique_ptr<Worker>> open_workers(const std::vector<std::string>& names,
                                                  int threads, const std::vector<Job>& jobs,
                                                  const WorkerOptions& options);

// Opens what --device says in this process, which then must not make workers.
std::vector<std::unique_ptr<Device>> open_devices(const std::string& devices,
                                                  const std::string& priority, int threads);

std::vector<std::string> split_list(const std::string& text);  // "a,b" -> a b

std::string operands_of(const OpRow& row);  // "out = x, weight, [bias]"

// Throws UsageError unless the name is a float dtype.
DType parse_dtype(const std::string& name);

// `devices`: one line each, "cpu: AMD EPYC, avx2".
RunInfo run_info(std::vector<std::string> devices);
// The command line as it was typed, quoted where a shell needs it.
void remember_command(int argc, char** argv);

}  // namespace plumb::harness
