#include "harness/run/impl_coverage.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <set>
#include <sstream>

#include "harness/io/escape.h"
#include "harness/io/table.h"
#include "harness/ops/op_suite.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr size_t kEnoughSamples = 6;  // of a dtype
constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
// Elements of a call's operands up to which it is run in other dtypes than its recording's, too.
constexpr int64_t kSmallCall = int64_t{1} << 18;

void write(std::ostream& out, const blocks::Params& params) {
  for (const auto& [name, value] : params.values()) {
    if (name == "max_abs_score") continue;  // for the judge
    out << name << '=';
    if (const auto* nested = std::get_if<blocks::Params>(&value)) write(out, *nested);
    else if (const auto* number = std::get_if<double>(&value)) out << *number;
    else if (const auto* word = std::get_if<std::string>(&value)) out << *word;
    else if (const auto* flag = std::get_if<bool>(&value)) out << *flag;
    else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
      for (const double v : *list) out << v << ',';
    }
    out << ' ';
  }
}

// Checkpoints that differ in values alone: what may run does not depend on values.
struct Call {
  const Recording* recording = nullptr;
  const Checkpoint* checkpoint = nullptr;  // the first of them
  int64_t elements = 0;                    // of all operands
  std::vector<std::string> checkpoints;    // "llama-a1/whole-f32 model.norm#0"
  std::set<std::string> ops;               // that it ran
};

// All of a checkpoint but values: block, params, dtypes and shapes.
std::string call_of(const Recording& recording, const Checkpoint& checkpoint) {
  std::ostringstream out;
  out << std::setprecision(17) << checkpoint.block << ' ';
  write(out, checkpoint.params);
  const auto operand = [&](const std::string& name, const std::string& key) {
    const TensorInfo& info = recording.tensor_info(key);
    out << name << ' ' << name_of(info.dtype) << ' ' << info.shape << ' ';
  };
  for (const auto& [name, ref] : checkpoint.inputs) operand(name, ref.tensor);
  for (const auto& [name, key] : checkpoint.weights) operand(name, key);
  for (const auto& [name, ref] : checkpoint.outputs) {
    operand(name, ref.tensor);
    out << recording.output_shape(ref) << ' ';
  }
  return out.str();
}

bool is_green(Status status) { return status == Status::pass || status == Status::blind; }

// The regular expression of this name alone, whose only special characters are dots.
std::string exactly(const std::string& name) {
  std::string out = "^";
  for (const char c : name) out += c == '.' ? std::string("\\.") : std::string(1, c);
  return out + '$';
}

std::string op_of(const std::string& implementation) {
  return implementation.substr(0, implementation.find('/'));
}

// Smallest first.
std::vector<Call> calls_of(const std::vector<SelectedRecording>& selected) {
  std::map<std::string, Call> by_shape;
  for (const SelectedRecording& it : selected) {
    for (const size_t index : it.checkpoints) {
      const Checkpoint& checkpoint = it.recording.checkpoints()[index];
      if (!blocks::find_block(checkpoint.block) || !checkpoint.reserved.empty()) continue;
      Call& call = by_shape[call_of(it.recording, checkpoint)];
      if (!call.checkpoint) {
        call.recording = &it.recording;
        call.checkpoint = &checkpoint;
        call.elements = elements_of(it.recording, checkpoint);
      }
      call.checkpoints.push_back(it.recording.name() + ' ' + checkpoint.id);
    }
  }
  std::vector<Call> out;
  for (auto& [shape, call] : by_shape) out.push_back(std::move(call));
  std::stable_sort(out.begin(), out.end(),
                   [](const Call& a, const Call& b) { return a.elements < b.elements; });
  return out;
}

class Survey {
 public:
  Survey(const std::vector<SelectedRecording>& selected, Device& device, Device& oracle,
         const Step& step)
      : calls_(calls_of(selected)), device_(device), oracle_(oracle), step_(step) {
    for (const Implementation& it : device.ops().implementations()) {
      coverage_.rows.push_back({to_string(it.op, it.name), std::string(it.absent), {}, {}});
    }
    for (ImplCoverage::Row& row : coverage_.rows) by_name_[row.name] = &row;
  }

  ImplCoverage run(bool every_op) {
    for (Call& call : calls_) {
      step_(text(call.checkpoints.front(), " on ", device_.name()));
      for (const DType dtype : kDTypes) {
        if (dtype == call.recording->dtype() || call.elements <= kSmallCall)
          run_freely(call, dtype);
      }
    }
    if (!every_op) {
      std::erase_if(coverage_.rows,
                    [&](auto& row) { return !coverage_.ops.contains(op_of(row.name)); });
    }
    for (ImplCoverage::Row& row : coverage_.rows) {
      const std::string op = op_of(row.name);
      if (row.covered() || !row.absent.empty()) continue;
      if (coverage_.ops.count(op) > 0 || is_unseen(op)) force(row);
      else run_samples(row);
    }
    device_.ops().force("");
    return std::move(coverage_);
  }

 private:
  // Whether there is a block of this name, and no call of it: what it runs is not known.
  bool is_unseen(const std::string& block) const {
    return blocks::find_block(block) &&
           std::none_of(calls_.begin(), calls_.end(),
                        [&](const Call& call) { return call.checkpoint->block == block; });
  }

  // The names of what runs, on zeros; none where the call is unsupported.
  std::vector<std::string> run(const Call& call, DType dtype, bool fuse) {
    try {
      const HostOperands operands = blank_operands(*call.recording, *call.checkpoint, dtype);
      const OpSet fused = fuse ? OpSet().set() : OpSet();
      return implementations_of(execute(*blocks::find_block(call.checkpoint->block),
                                        *call.checkpoint, operands, device_, {fused})
                                    .records);
    } catch (const Unsupported&) {  // verifying says what is missing
      return {};
    }
  }

  void run_freely(Call& call, DType dtype) {
    for (const bool fuse : {true, false}) {
      for (const std::string& name : run(call, dtype, fuse)) {
        call.ops.insert(op_of(name));
        coverage_.ops.insert(op_of(name));
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) continue;
        found->second->ran[dtype].insert(call.checkpoints.begin(), call.checkpoints.end());
      }
    }
  }

  // Finds the smallest call of the op that it can compute, and judges that.
  void force(ImplCoverage::Row& row) {
    step_(text(row.name, " on ", device_.name()));
    const std::string regex = exactly(row.name);
    for (const Call& call : calls_) {
      if (call.ops.count(op_of(row.name)) == 0) continue;
      const DType dtype = call.recording->dtype();
      for (const bool fuse : {true, false}) {
        device_.ops().force(regex);
        const std::vector<std::string> names = run(call, dtype, fuse);
        if (std::find(names.begin(), names.end(), row.name) == names.end()) continue;
        ReplayOptions options;
        options.fuse = fuse;
        options.impl = regex;
        const Status status =
            Replayer(*call.recording, device_, oracle_, options).run(*call.checkpoint).status;
        row.forced = true;
        row.ran[dtype].insert(call.checkpoints.front());
        if (!is_green(status)) row.failing[dtype].insert(call.checkpoints.front());
        return;
      }
    }
  }

  // What no block calls is run, and judged, on calls made from the op's row: a few in each dtype,
  // for `--suite ops` runs all of them in the device's own choice.
  void run_samples(ImplCoverage::Row& row) {
    step_(text(row.name, " on ", device_.name()));
    const auto op = std::ranges::find(device_.ops().implementations(), row.name,
                                      [](auto& it) { return to_string(it.op, it.name); });
    device_.ops().force(exactly(row.name));
    row.sampled = true;
    if (samples_.empty() || samples_[0].op != op->op) samples_ = cases_of(op->op);
    size_t step = 7;  // through all dtypes and layouts, each once
    while (std::gcd(step, samples_.size()) > 1) ++step;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const OpCase& sample = samples_[i * step % samples_.size()];
      const auto ran = row.ran.find(sample.storage);
      if (ran != row.ran.end() && ran->second.size() >= kEnoughSamples) continue;
      const CheckpointResult result = run_op(sample, device_, oracle_);
      if (std::ranges::find(result.impl, row.name) == result.impl.end()) continue;
      row.ran[sample.storage].insert(sample.id());
      if (!is_green(result.status)) row.failing[sample.storage].insert(sample.id());
    }
  }

  std::vector<Call> calls_;
  Device& device_;
  Device& oracle_;
  const Step& step_;
  ImplCoverage coverage_;
  std::map<std::string, ImplCoverage::Row*> by_name_;
  std::vector<OpCase> samples_;  // of one op: implementations of it follow each other
};

std::string remark(const ImplCoverage::Row& row) {
  if (!row.failing.empty()) {
    const auto& [dtype, ids] = *row.failing.begin();
    return text("FAILS in ", name_of(dtype), ", first in ", terminal_text(*ids.begin()));
  }
  if (!row.covered()) return row.absent.empty() ? "NO RECORDING RUNS IT" : "not run: " + row.absent;
  if (row.sampled) return "no block calls it: run by --suite ops";
  return row.forced ? "only when forced" : "";
}

}  // namespace

int64_t elements_of(const Recording& recording, const Checkpoint& checkpoint) {
  int64_t count = 0;
  for (const auto& [name, ref] : checkpoint.inputs)
    count += recording.tensor_info(ref.tensor).shape.numel();
  for (const auto& [name, key] : checkpoint.weights)
    count += recording.tensor_info(key).shape.numel();
  for (const auto& [name, ref] : checkpoint.outputs) count += recording.output_shape(ref).numel();
  return count;
}

bool ImplCoverage::complete() const {
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) {
    return row.failing.empty() && (row.covered() || !row.absent.empty());
  });
}

ImplCoverage impl_coverage(const std::vector<SelectedRecording>& selected, Device& device,
                           Device& oracle, bool every_op, const Step& step) {
  return Survey(selected, device, oracle, step).run(every_op);
}

std::string to_text(const ImplCoverage& coverage) {
  Table table;
  table.add_column("implementation", false);
  for (const DType dtype : kDTypes) table.add_column(std::string(name_of(dtype)), true);
  table.add_column("", false);
  for (const ImplCoverage::Row& row : coverage.rows) {
    std::vector<Table::Cell> cells = {{row.name, ""}};
    for (const DType dtype : kDTypes) {
      const auto found = row.ran.find(dtype);
      cells.push_back({std::to_string(found == row.ran.end() ? 0 : found->second.size()), ""});
    }
    cells.push_back({remark(row), ""});
    table.add_row(std::move(cells));
  }
  return table.to_text();
}

}  // namespace plumb::harness
