#include "harness/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "harness/bench/observed_ops.h"
#include "harness/bench/operands.h"
#include "harness/io/sha256.h"
#include "harness/result/device_errors.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Clock = std::chrono::steady_clock;
using Call = std::function<void(blocks::Context&)>;

constexpr double kBatchSeconds = 0.002;  // long enough for an event's resolution
constexpr int kFewestBatches = 3;
constexpr int64_t kMostCalls = 2000;  // per batch
constexpr double kLongEnough = 0.01;  // seconds of what is measured once
constexpr double kLongestTurn = 0.2;  // seconds of one round of all sets; a batch is whole rounds

double elapsed_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The bytes of chosen rows of every output of a set.
std::string fingerprint(Device& device, const BenchCase& bench_case, const BenchOperands& set) {
  std::string bytes;
  for (const BenchOperand& operand : bench_case.operands) {
    if (operand.fill.kind != Fill::output) continue;
    const Tensor t = set.at(operand.name);
    const Tensor rows = collected(device.ops(), picked(t, -2, picks(t.dim(-2), 16)));
    bytes += sha256_hex(rows.raw(), rows.bytes());
  }
  return bytes;
}

// Runs the calls in order; remembers where it stopped.
class Rotation {
 public:
  Rotation(Device& device, std::vector<Call> calls)
      : device_(device), context_{device.ops()}, calls_(std::move(calls)) {}

  // Has time() replay recorded launches, where the device can: then what is timed is the device
  // alone, not the host that launches, as in a model's replayed steps. `seconds`: of one call.
  // Returns how many calls a batch then is: whole turns, so that a replay finds of its operands in
  // the caches what any other call finds, which is nothing. The first set is the last of a turn.
  int64_t record(int64_t count, double seconds) {
    const auto turn = static_cast<int64_t>(calls_.size());
    if (static_cast<double>(turn) * seconds > kLongestTurn) return count;
    const int64_t whole_turns = (count + turn - 1) / turn * turn;
    next_ = turn > 1 ? 1 : 0;
    try {
      graph_ = device_.capture([&] { queue(whole_turns); });
    } catch (const Error&) {  // a call that does more than launch, of a plugin say: it is queued
    }
    if (!graph_) return count;
    recorded_ = whole_turns;
    device_.time([&] { graph_->replay(); });  // the first one also moves the graph to the device
    return recorded_;
  }
  bool recorded() const { return graph_ != nullptr; }
  // Leaves what the timed calls give for the first set. A replay has done that.
  void run_first() {
    next_ = 0;
    if (!recorded()) time(1);
  }

  // Seconds of one call in a batch of `count`.
  double time(int64_t count) {
    const double seconds = device_.time([&] {
      if (count == recorded_) return graph_->replay();
      queue(count);
    });
    return seconds / static_cast<double>(count);
  }

 private:
  void queue(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      calls_[next_](context_);
      next_ = (next_ + 1) % calls_.size();
    }
  }

  Device& device_;
  blocks::Context context_;
  std::vector<Call> calls_;
  size_t next_ = 0;
  std::unique_ptr<Graph> graph_;
  int64_t recorded_ = 0;  // calls
};

struct Timing {
  int64_t calls = 0;
  bool recorded = false;
  double median = 0, p10 = 0, p90 = 0;  // seconds
};

Timing time_calls(Rotation& rotation, const BenchOptions& options) {
  const auto start = Clock::now();
  double one = rotation.time(1);  // also the warm-up
  one = std::min(one, rotation.time(2));
  int64_t count =
      std::clamp(static_cast<int64_t>(std::ceil(kBatchSeconds / one)), int64_t{1}, kMostCalls);
  one = std::min(one, rotation.time(count));
  count = rotation.record(count, one);
  std::vector<double> batches;
  while (static_cast<int>(batches.size()) < std::max(options.batches, kFewestBatches)) {
    if (static_cast<int>(batches.size()) >= kFewestBatches &&
        elapsed_since(start) > options.seconds) {
      break;
    }
    batches.push_back(rotation.time(count));
  }
  std::sort(batches.begin(), batches.end());
  return {count * static_cast<int64_t>(batches.size()), rotation.recorded(), quantile(batches, 0.5),
          quantile(batches, 0.1), quantile(batches, 0.9)};
}

// Seconds of a copy that reads half of `bytes` and writes as many, timed as the cases are.
double time_copy(Device& device, double bytes, const BenchOptions& options) {
  const auto elements = std::max(int64_t{1}, static_cast<int64_t>(bytes / 2 / sizeof(float)));
  const auto half = [&](const char* name, Fill::Kind kind) {
    return BenchOperand{name, DType::f32, {1, elements}, {kind, 0, 1}};
  };
  const OperandSets sets(device, {half("out", Fill::output), half("x", Fill::normal)},
                         options.rotate_bytes);
  std::vector<Call> calls;
  for (int64_t i = 0; i < sets.count(); ++i) {
    calls.push_back([set = sets.set(i)](blocks::Context& context) {
      context.ops.copy(set.at("out"), set.at("x"));
    });
  }
  Rotation rotation(device, calls);
  return time_calls(rotation, options).median;
}

// Judges the case on the first set; false when it is wrong.
bool judge_first(const Call& call, const OperandSets& sets, Device& device, Device& oracle,
                 const char* when, BenchResult& out) {
  ObservedOps observed(device, oracle);
  blocks::Context context{observed};
  call(context);
  out.cost = observed.cost();
  out.impl = implementations(observed.records());
  out.status = observed.status();
  std::string reason = observed.reason();
  if (const std::string damage = sets.damage(); !damage.empty()) {
    out.status = Status::fail;
    reason = damage;
  }
  if (out.status != Status::pass) out.reason = text(when, " timing: ", reason);
  return out.status == Status::pass;
}

void measure(const BenchCase& bench_case, Device& device, Device& oracle, const Ceilings& ceilings,
             const BenchOptions& options, BenchResult& out) {
  const OperandSets sets(device, bench_case.operands, options.rotate_bytes);
  out.sets = sets.count();
  std::vector<Call> calls;
  for (int64_t i = 0; i < sets.count(); ++i) calls.push_back(bench_case.bind(sets.set(i)));
  if (!judge_first(calls[0], sets, device, oracle, "before", out)) return;
  {
    Rotation rotation(device, calls);
    const Timing timing = time_calls(rotation, options);
    out.calls = timing.calls;
    out.replayed = timing.recorded;
    out.median = timing.median;
    out.p10 = timing.p10;
    out.p90 = timing.p90;
    rotation.run_first();
  }
  const std::string timed = fingerprint(device, bench_case, sets.set(0));
  if (!judge_first(calls[0], sets, device, oracle, "after", out)) return;
  if (fingerprint(device, bench_case, sets.set(0)) != timed) {
    out.status = Status::nondeterministic;
    out.reason = "the timed calls left other bytes than the judged one";
  } else if (!share_of_ceiling(out, ceilings).of_matrix) {
    out.copy = time_copy(device, out.cost.bytes, options);
  }
}

// Seconds of one call in a queue, the work growing until a call is long enough to measure.
template <class Work>
double fastest(Device& device, const Work& work) {
  device.time(work);
  double best = device.time(work);
  for (int i = 0; i < 4; ++i) best = std::min(best, device.time(work));
  return best;
}

}  // namespace

std::string implementations(const std::vector<OpRecord>& records) {
  std::vector<std::string> words;
  for (const OpRecord& record : records) {
    const std::string word = to_string(record.op, record.impl);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

double quantile(const std::vector<double>& sorted, double q) {
  require(!sorted.empty(), "quantile", "of nothing");
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double measure_copy(Device& device) {
  constexpr int64_t kLargestCopy = int64_t{1} << 30;
  double out = 0;
  for (int64_t bytes = int64_t{1} << 20; bytes <= kLargestCopy; bytes *= 4) {
    const Tensor from = device.allocate(DType::f32, {1, bytes / 4});
    const Tensor to = device.allocate(DType::f32, {1, bytes / 4});
    device.fill(from, 0);
    const double seconds = fastest(device, [&] { device.ops().copy(to, from); });
    out = 2 * static_cast<double>(bytes) / seconds;
    if (seconds > kLongEnough) break;
  }
  return out;
}

Ceilings measure_ceilings(Device& device, DType dtype) {
  constexpr int64_t kLargestSide = 8192;
  Ceilings out;
  out.copy = measure_copy(device);
  for (int64_t n = 256; n <= kLargestSide; n *= 2) {
    const auto matrix = [&](const char* name, Fill::Kind kind) {
      return BenchOperand{name, dtype, {n, n}, {kind, 0, 1}};
    };
    const OperandSets sets(
        device,
        {matrix("out", Fill::output), matrix("x", Fill::normal), matrix("weight", Fill::normal)},
        0);
    const BenchOperands t = sets.set(0);
    const double seconds =
        fastest(device, [&] { device.ops().linear(t.at("out"), t.at("x"), t.at("weight")); });
    out.matrix = 2 * std::pow(static_cast<double>(n), 3) / seconds;
    if (seconds > kLongEnough) break;
  }
  return out;
}

Share share_of_ceiling(const BenchResult& result, const Ceilings& ceilings) {
  const double moving = result.cost.bytes / ceilings.copy;
  const double computing = result.cost.flops / ceilings.matrix;
  return {std::max(moving, computing) / result.median, computing > moving};
}

BenchResult run_bench(const BenchCase& bench_case, const BenchShape& shape, const BenchSizes& sizes,
                      Device& device, Device& oracle, const Ceilings& ceilings,
                      const BenchOptions& options) {
  BenchResult out;
  out.block = bench_case.block;
  out.name = bench_case.name;
  out.shape = shape.name;
  out.tokens = sizes.tokens;
  out.context = sizes.context;
  out.dtype = sizes.dtype;
  try {
    settle_device_errors(out.status, out.reason, [&] {
      device.ops().set_fused(options.fuse ? OpSet().set() : OpSet());
      measure(bench_case, device, oracle, ceilings, options, out);
    });
  } catch (const std::exception& error) {
    out.status = Status::internal_error;
    out.reason = error.what();
  }
  return out;
}

}  // namespace plumb::harness
