// One checkpoint on one device, stage by stage, so that stages of different checkpoints can
// overlap.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/replay/recorded.h"
#include "harness/replay/replay.h"

namespace plumb::harness {

// Bytes that a checkpoint's run and judgement hold at most, by estimate: operands on the host and
// on the device, results of two runs, and what the judge makes of each element.
int64_t bytes_in_flight(const Recording& recording, const Checkpoint& checkpoint, DType dtype,
                        RefereeRule referee);

class CheckpointRun {
 public:
  // `device`: its name. The recording and the options must outlive this.
  CheckpointRun(const Recording& recording, const Checkpoint& checkpoint, const std::string& device,
                const ReplayOptions& options);

  // The stages, in this order. None throws: what goes wrong becomes the result's status, and the
  // stages behind it do nothing. Those that take no device touch nothing that another thread's
  // stages of other checkpoints change; each thread needs an oracle of its own.
  void prepare();  // reads the operands
  // Runs the block, twice at least. `resident`: weights that the device has from before.
  void execute(Device& device, ResidentWeights* resident = nullptr);
  void judge(Device& oracle);
  // Whether it failed and is to be explained, for which the device may have to run once more.
  bool wants_explanation() const;
  void explain(Device& device, Device& oracle);

  const CheckpointResult& result() const { return replayed_.result; }
  Replayed take() { return std::move(replayed_); }

 private:
  // All runs of one way to fuse.
  struct Runs {
    Execution first;
    std::string damage;    // "" or what was written that must not be
    std::string unstable;  // "" or which bytes differ between runs
  };

  void stage(const std::function<void()>& work);
  Runs runs_on(Device& device, OpSet fused, ResidentWeights* resident) const;
  std::map<std::string, std::string> weight_keys() const;
  std::vector<OutputCase> cases(const Execution& execution, Device& oracle) const;
  Verdict verdict_on(const Runs& runs, const std::vector<OutputCase>& cases) const;
  // Results that differ between runs, and memory that was damaged.
  static void add_runs(const Runs& runs, Verdict& verdict);
  // Gradients, and what has quantised weights, by the recording; what other roundings do to
  // gradients is the block's to say.
  void judge_as_recorded(Device& oracle);
  void explain_as_recorded(Device& device, Device& oracle);
  std::function<void(OutputCase&)> redrawn(Device& oracle) const;
  // What ran, in the result.
  void note_run();
  bool is_as_recorded() const { return judged_as_recorded(checkpoint_); }
  bool is_backward() const { return !forward_of(checkpoint_.block).empty(); }
  bool is_refereed(bool fails) const;
  bool is_alone() const { return options_.referee == RefereeRule::never; }
  bool is_oracle() const { return replayed_.result.device == "oracle"; }
  OpSet fused() const { return options_.fuse ? OpSet().set() : OpSet(); }

  const Recording& recording_;
  const Checkpoint checkpoint_;  // a copy: a run marks the params that were read
  const ReplayOptions& options_;
  const DType dtype_;
  const blocks::BlockEntry* block_ = nullptr;
  HostOperands operands_;
  std::optional<Runs> runs_;
  std::vector<std::string> looser_;
  bool refereed_ = false;
  double score_ = 0;  // the largest |score| that a float64 run of the oracle had; 0: none
  Replayed replayed_;
  bool alive_ = true;  // no stage has failed
};

}  // namespace plumb::harness
