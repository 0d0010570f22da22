#include "tests/faults/kills.h"

#include "harness/recording/select.h"
#include "kernels/core/error.h"

namespace plumb::harness::testing {
namespace {

bool is_narrow(const Case& c) { return size_of(c.recording->dtype()) == 2; }

// Of the block itself, or of the attention inside.
bool has_static_cache(const blocks::Params& params) {
  if (params.has("attention")) return has_static_cache(params.object("attention"));
  return params.has("cache") && !params.is_null("cache") &&
         params.object("cache").string("kind") == "static";
}

bool is_green(Status status) { return status == Status::pass || status == Status::blind; }

std::string named(const Case& c, const CheckpointResult& result) {
  return text(c.recording->name(), ' ', c.checkpoint->id, ": ", name_of(result.status), ", ",
              result.reason);
}

}  // namespace

Suite::Suite() : device_(open_device("cpu", 1)), oracle_(open_device("oracle")) {
  for (const auto& folder : find_recordings(default_fixtures())) {
    recordings_.push_back(Recording::open(folder));
  }
  std::map<std::string, std::vector<std::vector<Case>>> columns;
  for (const Recording& recording : recordings_) {
    std::map<std::string, std::vector<Case>> column;
    for (const Checkpoint& c : recording.checkpoints()) column[c.block].push_back({&recording, &c});
    for (auto& [block, cases] : column) columns[block].push_back(std::move(cases));
  }
  for (const auto& [block, lists] : columns) {
    bool more = true;
    for (size_t row = 0; more; ++row) {
      more = false;
      for (const std::vector<Case>& list : lists) {
        if (row >= list.size()) continue;
        by_block_[block].push_back(list[row]);
        more = true;
      }
    }
  }
}

std::vector<std::string> Suite::blocks() const {
  std::vector<std::string> out;
  for (const auto& [block, cases] : by_block_) out.push_back(block);
  return out;
}

CheckpointResult Suite::run(const Case& c, Device& device) { return run(c, device, *oracle_); }

CheckpointResult Suite::run(const Case& c, Device& device, Device& oracle) {
  ReplayOptions options;
  options.explain = false;
  options.referee = rule_;
  return Replayer(*c.recording, device, oracle, options).run(*c.checkpoint);
}

void Suite::judge_by(RefereeRule rule) {
  rule_ = rule;
  right_.clear();
}

CheckpointResult Suite::verification(const Case& c, Device& oracle) {
  ReplayOptions options;
  options.explain = false;
  options.referee = RefereeRule::never;
  CheckpointResult out;
  for (const DType dtype : {DType::f64, c.recording->dtype()}) {
    options.dtype = dtype;
    options.fuse = dtype == DType::f64;  // what was recorded rounds after every operation
    out = Replayer(*c.recording, oracle, *oracle_, options).run(*c.checkpoint);
    if (!is_green(out.status)) break;
  }
  return out;
}

const CheckpointResult& Suite::right(const Case& c) {
  const auto found = right_.find(c.checkpoint);
  if (found != right_.end()) return found->second;
  return right_[c.checkpoint] = run(c, *device_);
}

Suite& suite() {
  static Suite recordings;
  return recordings;
}

namespace {

// `common`: a verdict other than fail kills, too; a judge that is wrong itself may see only that.
Kills kills_on(const Fault& fault, bool all, bool common) {
  Kills out;
  FaultyDevice device(suite().device(), fault.hooks);
  FaultyDevice wrong_oracle(suite().oracle(), fault.hooks);
  Device& oracle = common ? wrong_oracle : suite().oracle();
  for (const Case& c : suite().cases(fault.block)) {
    if (fault.narrow_only && !is_narrow(c)) continue;
    if (fault.growing_cache_only && has_static_cache(c.checkpoint->params)) continue;
    const int64_t hits = device.ops().hits();
    Checkpoint other;
    Case wrong = c;
    if (fault.numbers) {
      other = *c.checkpoint;
      const bool applies = fault.numbers(other.params);
      if (!applies) continue;
      wrong.checkpoint = &other;
    }
    CheckpointResult result = suite().run(wrong, device, oracle);
    if (!fault.numbers && device.ops().hits() == hits) {
      if (!is_green(result.status)) out.wrong.push_back("not reached, yet " + named(c, result));
      continue;
    }
    ++out.reached;
    if (suite().alone() && is_green(result.status) && (common || fault.numbers)) {
      result = suite().verification(wrong, oracle);
    }
    if (is_green(result.status)) continue;
    if (result.status != Status::fail && !common) out.wrong.push_back(named(c, result));
    if (!is_green(suite().right(c).status)) {
      out.wrong.push_back("without the fault: " + named(c, suite().right(c)));
    }
    if (out.killed++ == 0) {
      out.first = c;
      out.reason = result.reason;
    }
    if (!all) break;
  }
  return out;
}

}  // namespace

Kills kills_of(const Fault& fault, bool all) { return kills_on(fault, all, false); }

Kills common_kills_of(const Fault& fault, bool all) { return kills_on(fault, all, true); }

std::vector<std::string> not_isolated(const Fault& fault) {
  std::vector<std::string> out;
  FaultyDevice device(suite().device(), fault.hooks);
  for (const std::string& block : suite().blocks()) {
    if (block == fault.block || fault.numbers) continue;
    for (const bool narrow : {false, true}) {
      for (const Case& c : suite().cases(block)) {
        if (is_narrow(c) != narrow) continue;
        const int64_t hits = device.ops().hits();
        const CheckpointResult result = suite().run(c, device);
        const bool touched = device.ops().hits() != hits;
        if (!touched && !is_green(result.status)) out.push_back(named(c, result));
        break;
      }
    }
  }
  return out;
}

}  // namespace plumb::harness::testing
