#include "harness/impl_coverage.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "harness/escape.h"
#include "harness/table.h"
#include "kernels/error.h"

namespace plumb {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr size_t kForcedRuns = 4;  // checkpoints, in each dtype, of what must be forced

// A regular expression for exactly these names, whose only special characters are dots.
std::string expression_for(const std::vector<ImplCoverage::Row*>& rows) {
  std::string out;
  for (const ImplCoverage::Row* row : rows) {
    out += out.empty() ? "^(" : "|";
    for (char c : row->name) out += c == '.' ? std::string("\\.") : std::string(1, c);
  }
  return out + ")$";
}

void write(std::ostream& out, const Params& params) {
  for (const auto& [name, value] : params.values()) {
    if (name == "max_abs_score") continue;  // for the judge
    out << name << '=';
    if (const auto* nested = std::get_if<Params>(&value)) write(out, *nested);
    else if (const auto* number = std::get_if<double>(&value)) out << *number;
    else if (const auto* word = std::get_if<std::string>(&value)) out << *word;
    else if (const auto* flag = std::get_if<bool>(&value)) out << *flag;
    else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
      for (const double v : *list) out << v << ',';
    }
    out << ' ';
  }
}

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

class Survey {
 public:
  Survey(const std::vector<SelectedRecording>& selected, Device& device, Device& oracle)
      : selected_(selected), device_(device), oracle_(oracle) {
    for (const Implementation& it : device.ops().implementations()) {
      coverage_.rows.push_back({to_string(it.op, it.name), std::string(it.absent), {}, {}});
    }
    for (ImplCoverage::Row& row : coverage_.rows) by_name_[row.name] = &row;
  }

  ImplCoverage run() {
    for (const SelectedRecording& it : selected_) {
      for (const size_t index : it.checkpoints) {
        for (const DType dtype : kDTypes)
          run_once(it.recording, it.recording.checkpoints()[index], dtype);
      }
    }
    // An op runs the first that can of those it is forced to, so the rest need further rounds.
    for (std::vector<ImplCoverage::Row*> rest = missing(); !rest.empty();) {
      // One op at a time: a block is unsupported when any of its ops is.
      std::map<std::string, std::vector<ImplCoverage::Row*>> by_op;
      for (ImplCoverage::Row* row : rest)
        by_op[row->name.substr(0, row->name.find('/'))].push_back(row);
      for (const auto& [op, rows] : by_op) force(rows);
      std::vector<ImplCoverage::Row*> still = missing();
      for (ImplCoverage::Row* row : rest) row->forced = row->covered();
      if (still.size() == rest.size()) break;
      rest = std::move(still);
    }
    device_.ops().force("");
    return std::move(coverage_);
  }

 private:
  std::vector<ImplCoverage::Row*> missing() {
    std::vector<ImplCoverage::Row*> out;
    for (ImplCoverage::Row& row : coverage_.rows) {
      if (!row.covered() && row.absent.empty()) out.push_back(&row);
    }
    return out;
  }

  // Of checkpoints that differ in values alone one is run: what may run does not depend on values.
  void run_once(const Recording& recording, const Checkpoint& checkpoint, DType dtype) {
    const BlockEntry* block = find_block(checkpoint.block);
    if (!block || !checkpoint.reserved.empty()) return;
    const auto [same, first] =
        ran_.try_emplace(text(call_of(recording, checkpoint), name_of(dtype)));
    if (first) same->second = run_both(*block, recording, checkpoint, dtype);
    note(recording, checkpoint, dtype, same->second);
  }

  // Fused and composed, on zeros.
  std::vector<std::string> run_both(const BlockEntry& block, const Recording& recording,
                                    const Checkpoint& checkpoint, DType dtype) {
    const HostOperands operands = blank_operands(recording, checkpoint, dtype);
    std::vector<OpRecord> records;
    for (const OpSet fused : {OpSet().set(), OpSet()}) {
      try {
        const Execution done = execute(block, checkpoint, operands, device_, {fused});
        records.insert(records.end(), done.records.begin(), done.records.end());
      } catch (const Unsupported&) {  // verifying says what is missing
      }
    }
    return implementations_of(records);
  }

  // Runs, and judges, some of the checkpoints that have an op of which these can compute.
  void force(const std::vector<ImplCoverage::Row*>& rows) {
    for (const DType dtype : kDTypes) {
      for (const bool fuse : {true, false}) {
        ReplayOptions options;
        options.dtype = dtype;
        options.fuse = fuse;
        options.impl = expression_for(rows);
        for (const SelectedRecording& it : selected_) force_recording(it, options, rows);
      }
    }
  }

  // Whether the checkpoint has an op of which a forced implementation has not run often enough.
  bool worth_running(const std::string& id, DType dtype,
                     const std::vector<ImplCoverage::Row*>& forced) {
    return std::any_of(forced.begin(), forced.end(), [&](const ImplCoverage::Row* row) {
      const auto ran = row->ran.find(dtype);
      return (ran == row->ran.end() || ran->second.size() < kForcedRuns) &&
             ops_of_[id].count(row->name.substr(0, row->name.find('/'))) > 0;
    });
  }

  void force_recording(const SelectedRecording& selected, const ReplayOptions& options,
                       const std::vector<ImplCoverage::Row*>& forced) {
    Replayer replayer(selected.recording, device_, oracle_, options);
    for (const size_t index : selected.checkpoints) {
      const Checkpoint& checkpoint = selected.recording.checkpoints()[index];
      if (!worth_running(label(selected.recording, checkpoint), *options.dtype, forced)) continue;
      const CheckpointResult result = replayer.run(checkpoint);
      const bool passed = result.status == Status::pass || result.status == Status::blind;
      note(selected.recording, checkpoint, *options.dtype, result.impl, passed);
    }
  }

  static std::string label(const Recording& recording, const Checkpoint& checkpoint) {
    return recording.name() + ' ' + checkpoint.id;
  }

  void note(const Recording& recording, const Checkpoint& checkpoint, DType dtype,
            const std::vector<std::string>& implementations, bool passed = true) {
    const std::string id = label(recording, checkpoint);
    for (const std::string& name : implementations) {
      ops_of_[id].insert(name.substr(0, name.find('/')));
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) continue;
      found->second->ran[dtype].insert(id);
      if (!passed) found->second->failing[dtype].insert(id);
    }
  }

  const std::vector<SelectedRecording>& selected_;
  Device& device_;
  Device& oracle_;
  ImplCoverage coverage_;
  std::map<std::string, ImplCoverage::Row*> by_name_;
  std::map<std::string, std::vector<std::string>> ran_;  // by a call and a dtype
  std::map<std::string, std::set<std::string>> ops_of_;  // that a checkpoint runs
};

std::string remark(const ImplCoverage::Row& row) {
  if (!row.failing.empty()) {
    const auto& [dtype, ids] = *row.failing.begin();
    return text("FAILS in ", name_of(dtype), ", first in ", terminal_text(*ids.begin()));
  }
  if (!row.covered()) return row.absent.empty() ? "NO RECORDING RUNS IT" : "not run: " + row.absent;
  return row.forced ? "only when forced" : "";
}

}  // namespace

bool ImplCoverage::complete() const {
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) {
    return row.failing.empty() && (row.covered() || !row.absent.empty());
  });
}

ImplCoverage impl_coverage(const std::vector<SelectedRecording>& selected, Device& device,
                           Device& oracle) {
  return Survey(selected, device, oracle).run();
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

}  // namespace plumb
