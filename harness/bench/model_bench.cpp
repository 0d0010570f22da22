#include "harness/bench/model_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>

#include "blocks/models/decode_step.h"
#include "harness/bench/observed_ops.h"
#include "harness/model/inference.h"
#include "harness/result/device_errors.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kGuardTokens = 16;

// VmHWM of /proc/self/status.
int64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 6, "VmHWM:") == 0) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

// A model with a sequence and random ids for it.
class Runner {
 public:
  Runner(const blocks::CausalLm& model, Device& device, int64_t room)
      : model_(model), device_(device), room_(room), random_(1) {
    restart();
  }

  void restart() {
    step_.reset();
    sequence_.emplace(model_.begin(device_, 1, room_));
  }
  const blocks::Sequence& sequence() const { return *sequence_; }

  std::vector<int64_t> random_ids(int64_t count) {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < count; ++i) {
      out.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(model_.vocabulary())));
    }
    return out;
  }

  // Seconds that the next tokens take, until the logits of the last `keep` of them are there.
  double forward(const std::vector<int64_t>& ids, int64_t keep, Ops& ops) {
    const auto count = static_cast<int64_t>(ids.size());
    prepare(count, keep);
    blocks::Context ctx{ops};
    const auto work = [&] { model_.forward(ctx, logits_, ids_, *sequence_); };
    device_.upload(ids_, ids.data());
    return seconds_of(work);
  }

  // Seconds a token of the next `count`, each the greedy choice behind the one before, as
  // generation takes them: with replayed launches where that is possible.
  double decode(int64_t count) {
    prepare(1, 1);
    if (!step_) {
      step_.emplace(model_, device_, *sequence_, ids_, logits_);
      step_->choose_greedily(log_);
      device_.upload(ids_, random_ids(1).data());
    }
    const auto work = [&] {
      for (int64_t i = 0; i < count; ++i) (*step_)();
    };
    return seconds_of(work) / static_cast<double>(count);
  }

  // The last call's logits as doubles; DeviceError where one is not finite.
  std::vector<double> logits() const {
    const Tensor host = host_tensor(logits_.dtype(), logits_.shape());
    device_.download(host.raw(), logits_);
    std::vector<double> out(static_cast<size_t>(host.numel()));
    for (int64_t i = 0; i < host.numel(); ++i) {
      const double value = load(host.dtype(), host.data<char>() + i * size_of(host.dtype()));
      require<DeviceError>(std::isfinite(value), "bench", "logit ", i, " is not finite");
      out[static_cast<size_t>(i)] = value;
    }
    return out;
  }

 private:
  template <class Work>
  double seconds_of(const Work& work) {
    device_.synchronize();
    const auto start = Clock::now();
    work();
    device_.synchronize();
    const std::chrono::duration<double> taken = Clock::now() - start;
    return taken.count();
  }

  void prepare(int64_t count, int64_t keep) {
    const bool ids_fit = ids_.defined() && ids_.dim(1) == count;
    const bool logits_fit = logits_.defined() && logits_.dim(1) == keep;
    if (!ids_fit || !logits_fit) step_.reset();
    if (!ids_fit) ids_ = device_.allocate(DType::i64, {1, count});
    if (!logits_fit) logits_ = device_.allocate(model_.dtype(), {1, keep, model_.vocabulary()});
    if (!log_.defined()) {
      log_ = device_.allocate(DType::i64, {Inference::kMostAtOnce, 1});
    }
  }

  const blocks::CausalLm& model_;
  Device& device_;
  const int64_t room_;
  std::mt19937_64 random_;
  std::optional<blocks::Sequence> sequence_;
  Tensor ids_, logits_, log_;
  std::optional<blocks::DecodeStep> step_;
};

// |x - y| / |y|
double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(error / size);
}

// The model of one benchmark.
class Measurement {
 public:
  Measurement(const blocks::CausalLm& model, Device& device, Device& oracle,
              const ModelBenchOptions& options, ModelBenchResult& out)
      : model_(model), device_(device), oracle_(oracle), options_(options), out_(out) {}

  void run() {
    guard("before");
    if (out_.status != Status::pass) return;
    Runner runner(model_, device_, options_.tokens + options_.steps + 4);
    for (const blocks::KvBuffer& cache : runner.sequence().caches)
      out_.state_bytes += cache.bytes();
    for (const blocks::MambaBuffer& state : runner.sequence().states)
      out_.state_bytes += state.bytes();
    const std::vector<int64_t> prompt = runner.random_ids(options_.tokens);
    std::vector<double> prefills;
    for (int i = 0; i < options_.prefills; ++i) {
      runner.restart();
      prefills.push_back(runner.forward(prompt, 1, device_.ops()));
    }
    out_.prefill = *std::min_element(prefills.begin(), prefills.end());
    time_steps(runner);
    if (out_.status == Status::pass) guard("after");
  }

 private:
  // Single tokens behind half a prompt against the whole prompt.
  void guard(const char* when) {
    Runner runner(model_, device_, kGuardTokens);
    const std::vector<int64_t> ids = runner.random_ids(kGuardTokens);
    const auto half = ids.begin() + kGuardTokens / 2;
    runner.forward(ids, kGuardTokens / 2, device_.ops());
    const std::vector<double> whole = runner.logits();
    runner.restart();
    runner.forward({ids.begin(), half}, 1, device_.ops());
    std::vector<double> single;
    for (auto id = half; id != ids.end(); ++id) {
      runner.forward({*id}, 1, device_.ops());
      const std::vector<double> row = runner.logits();
      single.insert(single.end(), row.begin(), row.end());
    }
    out_.guard_error = std::max(out_.guard_error, relative_error(single, whole));
    // Roundings of independent sign in every layer, some of each.
    const auto layers = static_cast<double>(
        std::max(runner.sequence().caches.size(), runner.sequence().states.size()));
    out_.guard_limit = 8 * unit_roundoff(model_.dtype()) * std::sqrt(layers);
    if (!(out_.guard_error <= out_.guard_limit)) {
      out_.status = Status::fail;
      out_.reason = text(when, " timing: decoded logits differ by ", out_.guard_error,
                         " from those of one call, allowed ", out_.guard_limit);
    }
  }

  // A step whose ops are judged; what it has to move.
  Cost judged_step(Runner& runner, const char* when) {
    ObservedOps observed(device_, oracle_);
    runner.forward(runner.random_ids(1), 1, observed);
    runner.logits();
    out_.impl = implementations(observed.records());
    out_.status = observed.status();
    if (out_.status != Status::pass) out_.reason = text(when, " timing: ", observed.reason());
    return observed.cost();
  }

  void time_steps(Runner& runner) {
    const Cost first = judged_step(runner, "before");
    if (out_.status != Status::pass) return;
    runner.decode(1);  // scratch memory grows
    runner.decode(1);  // launches are recorded
    std::vector<double> steps;
    int64_t at_once = 1;
    while (static_cast<int64_t>(steps.size()) < options_.steps) {
      const int64_t left = options_.steps - static_cast<int64_t>(steps.size());
      const int64_t count = std::min(at_once, left);
      const double seconds = runner.decode(count);
      steps.insert(steps.end(), static_cast<size_t>(count), seconds);
      at_once = Inference::at_once(seconds);
    }
    runner.logits();
    std::sort(steps.begin(), steps.end());
    out_.decode = quantile(steps, 0.5);
    out_.decode_p10 = quantile(steps, 0.1);
    out_.decode_p90 = quantile(steps, 0.9);
    const Cost last = judged_step(runner, "after");
    out_.step = {(first.bytes + last.bytes) / 2, (first.flops + last.flops) / 2};
  }

  const blocks::CausalLm& model_;
  Device& device_;
  Device& oracle_;
  const ModelBenchOptions& options_;
  ModelBenchResult& out_;
};

}  // namespace

ModelBenchResult run_model_bench(const blocks::CausalLm& model, Device& device, Device& oracle,
                                 const ModelBenchOptions& options) {
  ModelBenchResult out;
  settle_device_errors(out.status, out.reason,
                       [&] { Measurement(model, device, oracle, options, out).run(); });
  out.peak_rss = peak_resident_bytes();
  return out;
}

double decode_share(const ModelBenchResult& result, double copy) {
  return result.step.bytes / result.decode / copy;
}

int64_t allowed_rss(const ModelBenchResult& result, int64_t weight_bytes) {
  constexpr int64_t kActivations = int64_t{256} << 20;
  return weight_bytes + result.state_bytes + kActivations;
}

}  // namespace plumb::harness
