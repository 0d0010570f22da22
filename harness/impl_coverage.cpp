#include "harness/impl_coverage.h"

#include <algorithm>

#include "harness/escape.h"
#include "harness/table.h"
#include "kernels/error.h"

namespace plumb {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr size_t kForcedRuns = 20;  // checkpoints, in each dtype, of what must be forced

// A regular expression for exactly these names, whose only special characters are dots.
std::string expression_for(const std::vector<ImplCoverage::Row*>& rows) {
  std::string out;
  for (const ImplCoverage::Row* row : rows) {
    out += out.empty() ? "^(" : "|";
    for (char c : row->name) out += c == '.' ? std::string("\\.") : std::string(1, c);
  }
  return out + ")$";
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
    run_all("", {});
    // An op runs the first that can of those it is forced to, so the rest need further rounds.
    for (std::vector<ImplCoverage::Row*> rest = missing(); !rest.empty();) {
      // One op at a time: a block is unsupported when any of its ops is.
      std::map<std::string, std::vector<ImplCoverage::Row*>> by_op;
      for (ImplCoverage::Row* row : rest)
        by_op[row->name.substr(0, row->name.find('/'))].push_back(row);
      for (const auto& [op, rows] : by_op) run_all(expression_for(rows), rows);
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

  void run_all(const std::string& impl, const std::vector<ImplCoverage::Row*>& forced) {
    for (const DType dtype : kDTypes) {
      for (const bool fuse : {true, false}) {
        ReplayOptions options;
        options.dtype = dtype;
        options.fuse = fuse;
        options.impl = impl;
        for (const SelectedRecording& it : selected_) run_recording(it, options, forced);
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

  void run_recording(const SelectedRecording& selected, const ReplayOptions& options,
                     const std::vector<ImplCoverage::Row*>& forced) {
    Replayer replayer(selected.recording, device_, oracle_, options);
    for (const size_t index : selected.checkpoints) {
      const Checkpoint& checkpoint = selected.recording.checkpoints()[index];
      const std::string id = selected.recording.name() + ' ' + checkpoint.id;
      if (!forced.empty() && !worth_running(id, *options.dtype, forced)) continue;
      const CheckpointResult result = replayer.run(checkpoint);
      for (const std::string& name : result.impl) {
        ops_of_[id].insert(name.substr(0, name.find('/')));
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) continue;
        found->second->ran[*options.dtype].insert(id);
        if (result.status != Status::pass && result.status != Status::blind) {
          found->second->failing[*options.dtype].insert(id);
        }
      }
    }
  }

  const std::vector<SelectedRecording>& selected_;
  Device& device_;
  Device& oracle_;
  ImplCoverage coverage_;
  std::map<std::string, ImplCoverage::Row*> by_name_;
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
