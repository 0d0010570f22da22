// Results made by hand, for the tests of everything that reports them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/result/result.h"
#include "harness/run/outcome.h"
#include "tests/harness/no_number.h"

namespace plumb::harness {

// Everything at once that could break out of a report: an escape sequence, markup, quotes, NUL,
// invalid UTF-8, a line feed, a right-to-left override, a code fence.
inline constexpr char kHostileBytes[] = "\x1b[31m<b>|`\"&'\0\xff\n\xe2\x80\xae```]]>_x_*";
inline const std::string kHostile(kHostileBytes, sizeof(kHostileBytes) - 1);

inline Gate sample_gate(std::string name, double statistic, double limit, double reference,
                        std::string where = "") {
  return {.name = std::move(name),
          .statistic = statistic,
          .limit = limit,
          .derivation = {{"c", 2}, {"reference", reference}, {"floor", 1e-3}},
          .passed = statistic <= limit,
          .where = std::move(where)};
}

inline CheckpointResult sample_result(std::string block, Status status,
                                      std::string device = "cpu") {
  CheckpointResult result;
  result.status = status;
  result.block = block;
  result.checkpoint = "model.layers.0.self_attn:" + block + "#0";
  result.recording = "gemma2-a4/whole-bf16";
  result.fixture = "fixtures/gemma2-a4/whole-bf16";
  result.device = std::move(device);
  result.dtype = "bf16";
  result.contract = "bf16 multiply bf16 acc 24 nearest fused";
  result.impl = {"sdpa/avx2"};
  result.output_sha256 = std::string(64, 'a');
  result.golden_sha256 = std::string(64, '0');
  result.seconds = 0.25;
  return result;
}

inline CheckpointResult passing(std::string block = "sdpa") {
  CheckpointResult result = sample_result(std::move(block), Status::pass);
  OutputVerdict output;
  output.name = "out";
  output.status = Status::pass;
  output.gates = {sample_gate("tensor", 2e-3, 8e-3, 3.6e-3),
                  sample_gate("token", 4e-3, 8e-3, 4e-3)};
  result.outputs = {output};
  return result;
}

// The failure that harness/report/console.h shows.
inline CheckpointResult failing() {
  CheckpointResult result = sample_result("sdpa", Status::fail);
  OutputVerdict output;
  output.name = "out";
  output.status = Status::fail;
  output.reason = "tensor error 0.031, allowed 0.0074";
  output.gates = {sample_gate("structure", 0, 0, 0), sample_gate("tensor", 3.1e-2, 7.4e-3, 3.6e-3),
                  sample_gate("element", 0.5, 0.25, 0.1, "token 5, head 3, head_dim 1")};
  output.where =
      Localisation{"token >= 5", 0.998, "head 3 (4.2x the limit)", {{"token", {0, kInf}}}};
  result.outputs = {output};
  result.reason = output.reason;
  result.fused = true;
  result.details = {"composed (--no-fuse): pass  -> look at a fused op, not a primitive"};
  result.again =
      "harness --fixture fixtures/gemma2-a4/whole-bf16 --checkpoint "
      "'model.layers.0.self_attn:sdpa#0' --device cpu";
  return result;
}

inline CheckpointResult stopped(Status status, std::string reason, std::string block = "linear",
                                std::string device = "cpu") {
  CheckpointResult result = sample_result(std::move(block), status, std::move(device));
  result.reason = std::move(reason);
  return result;
}

// kHostile in every text that comes from a recording or a driver.
inline CheckpointResult hostile(CheckpointResult result) {
  for (std::string CheckpointResult::*member :
       {&CheckpointResult::reason, &CheckpointResult::block, &CheckpointResult::checkpoint,
        &CheckpointResult::recording, &CheckpointResult::fixture, &CheckpointResult::device,
        &CheckpointResult::dtype, &CheckpointResult::contract, &CheckpointResult::again}) {
    result.*member = kHostile;
  }
  result.impl = {kHostile};
  result.features = {kHostile + "seen"};
  result.blind_to = {kHostile};
  result.details = {kHostile};
  for (OutputVerdict& output : result.outputs) {
    output.name = output.reason = kHostile;
    for (Gate& gate : output.gates) gate.where = gate.name = kHostile;
    if (output.where) output.where->region = output.where->worst = kHostile;
  }
  return result;
}

inline RunInfo sample_run() {
  return {"harness --device cpu",
          "0.1.0",
          "2000-01-01T00:00:00Z",
          {{"compiler", "GCC 12.2.0"}, {"cpu", kHostile}},
          {"cpu: 2 cores, avx2"}};
}

inline Outcome sample_outcome(const std::vector<CheckpointResult>& results, bool strict = false) {
  Outcome outcome =
      outcome_of(results, {.strict = strict, .blocks = {}, .devices = {}, .dtypes = {}});
  outcome.seconds = 1.5;
  return outcome;
}

}  // namespace plumb::harness
