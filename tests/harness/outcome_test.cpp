#include "harness/run/outcome.h"

#include "tests/catch.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

using Results = std::vector<CheckpointResult>;

CheckpointResult with(CheckpointResult result, std::vector<std::string> features,
                      std::vector<std::string> blind_to) {
  result.features = std::move(features);
  result.blind_to = std::move(blind_to);
  return result;
}

Results of(const std::vector<Status>& statuses) {
  Results results;
  for (const Status status : statuses) results.push_back(sample_result("sdpa", status));
  return results;
}

TEST_CASE("a pass of some of what was asked for is incomplete, unless that is meant") {
  using enum Status;
  Request asked;
  asked.checkpoints = 3;
  asked.not_given = 2;
  const std::string words = "outputs of 2 of 3 checkpoints were not given";
  for (const bool strict : {false, true}) {
    asked.strict = strict;
    const Outcome outcome = outcome_of(of({pass}), asked);
    CHECK(outcome.exit_code == 4);
    CHECK(outcome.verdict.starts_with("incomplete: " + words));
  }
  CHECK(outcome_of(of({blind}), asked).exit_code == 4);
  const Outcome failed = outcome_of(of({fail}), asked);
  CHECK(failed.exit_code == 1);
  CHECK(failed.verdict.ends_with("; " + words));
  asked.partial = true;
  const Outcome meant = outcome_of(of({pass}), asked);
  CHECK(meant.exit_code == 0);
  CHECK(meant.verdict.ends_with("; " + words));
}

TEST_CASE("the exit code is that of the worst status") {
  struct Row {
    std::vector<Status> statuses;
    int plain, strict;
  };
  using enum Status;
  const std::vector<Row> table = {
      {{}, 2, 2},
      {{pass}, 0, 0},
      {{pass, fail}, 1, 1},
      {{fail, pass, blind}, 1, 1},
      {{pass, bad_input}, 3, 3},
      {{pass, unsupported}, 0, 4},
      {{unsupported, unsupported}, 4, 4},
      {{pass, blind}, 0, 8},
      {{blind}, 8, 8},
      {{blind, unsupported}, 4, 4},
      {{pass, blind, unsupported}, 0, 4},
      {{pass, device_error}, 5, 5},
      {{pass, timeout}, 6, 6},
      {{pass, internal_error}, 7, 7},
      {{pass, nondeterministic}, 9, 9},
      // severity 7 > 5 > 6 > 3 > 1 > 9 > 4 > 8
      {{device_error, internal_error}, 7, 7},
      {{timeout, device_error}, 5, 5},
      {{bad_input, timeout}, 6, 6},
      {{fail, bad_input}, 3, 3},
      {{nondeterministic, fail}, 1, 1},
      {{unsupported, nondeterministic}, 9, 9},
  };
  for (const Row& row : table) {
    CAPTURE(&row - table.data());
    CHECK(outcome_of(of(row.statuses), {}).exit_code == row.plain);
    CHECK(outcome_of(of(row.statuses), {true, {}, {}, {}}).exit_code == row.strict);
  }
}

TEST_CASE("one of several shards is not to blame for what it alone has not seen") {
  using enum Status;
  const auto shard = [](const Results& results, bool strict = false) {
    Request request{.strict = strict, .blocks = {"sdpa"}, .devices = {}, .dtypes = {}};
    request.shard = true;
    return outcome_of(results, request);
  };
  CHECK(shard({}).exit_code == 0);
  CHECK(shard({}).verdict == "the shard is empty, so there was nothing to verify");
  CHECK(shard(of({blind})).exit_code == 0);
  CHECK(shard(of({unsupported})).exit_code == 0);
  CHECK(shard({with(passing(), {"window"}, {"window"})}).exit_code == 0);
  CHECK(shard(of({blind}), true).exit_code == 8);
  CHECK(shard(of({pass, fail})).exit_code == 1);
  CHECK(shard(of({unsupported, timeout})).exit_code == 6);
}

TEST_CASE("a feature that every checkpoint is blind to is a blind selection") {
  const CheckpointResult blind = with(passing(), {"scale"}, {"window"});
  const CheckpointResult seeing = with(passing(), {"window"}, {});

  const Outcome alone = outcome_of({blind, blind}, {});
  CHECK(alone.exit_code == 8);
  REQUIRE(alone.blind.size() == 1);
  CHECK(alone.blind[0].block == "sdpa");
  CHECK(alone.blind[0].feature == "window");
  CHECK(alone.blind[0].blind == 2);
  CHECK(alone.blind[0].everywhere());
  CHECK(alone.verdict == "blind: nothing failed, but no selected checkpoint can see sdpa window");

  const Outcome together = outcome_of({blind, seeing}, {});
  CHECK(together.exit_code == 0);
  REQUIRE(together.blind.size() == 1);
  CHECK(together.blind[0].seen == 1);
  // A pass that is blind to one feature is still a pass, under --strict too.
  CHECK(outcome_of({blind, seeing}, {true, {}, {}, {}}).exit_code == 0);
}

TEST_CASE("a feature counts for its own block, and only where it was judged") {
  const CheckpointResult blind = with(passing("sdpa"), {}, {"scale"});
  CHECK(outcome_of({blind, with(passing("embedding"), {"scale"}, {})}, {}).exit_code == 8);
  for (const Status status : {Status::unsupported, Status::blind}) {
    CHECK(outcome_of({blind, with(sample_result("sdpa", status), {"scale"}, {})}, {}).exit_code ==
          8);
  }
  // A failure was judged; it decides the exit code.
  CHECK(outcome_of({blind, with(failing(), {"scale"}, {})}, {}).exit_code == 1);
  CHECK(outcome_of({blind, with(failing(), {"scale"}, {})}, {}).blind[0].seen == 1);
  // blind_to wins where a name is in both lists.
  CHECK(outcome_of({with(passing(), {"scale"}, {"scale"})}, {}).exit_code == 8);
  // A feature that was never run is not blind.
  CHECK(outcome_of({passing(), with(stopped(Status::unsupported, "no"), {}, {"bias"})}, {})
            .exit_code == 0);
}

TEST_CASE("a block all of whose checkpoints are blind is a blind selection") {
  const Results results = {passing("sdpa"), stopped(Status::blind, "constant", "linear"),
                           with(stopped(Status::blind, "zero", "linear"), {"bias"}, {}),
                           stopped(Status::unsupported, "no", "linear")};
  const Outcome outcome = outcome_of(results, {});
  CHECK(outcome.exit_code == 8);
  REQUIRE(outcome.blind.size() == 1);
  CHECK(outcome.blind[0].feature.empty());
  CHECK(outcome.blind[0].blind == 2);
  CHECK(outcome.verdict ==
        "blind: nothing failed, but no selected checkpoint proves anything of linear");
}

TEST_CASE("what was asked for by name and is unsupported everywhere counts") {
  const Results results = {passing("sdpa"), stopped(Status::unsupported, "no conv", "conv"),
                           stopped(Status::unsupported, "no sdpa", "sdpa", "opencl")};
  CHECK(outcome_of(results, {}).exit_code == 0);
  CHECK(outcome_of(results, {false, {"sdpa"}, {"cpu"}, {"bf16"}}).exit_code == 0);
  CHECK(outcome_of(results, {false, {"conv"}, {}, {}}).exit_code == 4);
  const Outcome device = outcome_of(results, {false, {}, {"cpu", "opencl"}, {}});
  CHECK(device.exit_code == 4);
  CHECK(device.missing == std::vector<std::string>{"device opencl"});
  CHECK(device.verdict == "unsupported wherever it was tried, though asked for: device opencl");

  Results failed = results;
  failed.push_back(failing());
  CHECK(outcome_of(failed, {false, {"conv"}, {}, {}}).exit_code == 1);
  // Unsupported is more severe than blind.
  Results blind = results;
  blind.push_back(with(passing(), {}, {"window"}));
  CHECK(outcome_of(blind, {}).exit_code == 8);
  CHECK(outcome_of(blind, {false, {"conv"}, {}, {}}).exit_code == 4);
}

TEST_CASE("rows hold counts and the gate nearest to its limit") {
  CheckpointResult other = passing();
  other.dtype = "f32";
  const Outcome outcome =
      outcome_of({passing(), failing(), other, stopped(Status::timeout, "")}, {});
  REQUIRE(outcome.rows.size() == 3);
  CHECK(outcome.counts.total() == 4);
  const OverviewRow& row = outcome.rows[0];
  CHECK(row.dtype == "bf16");
  CHECK(row.counts[Status::pass] == 1);
  CHECK(row.counts[Status::fail] == 1);
  REQUIRE(row.worst.has_value());
  CHECK(row.worst->gate == "tensor");
  CHECK(row.worst->ratio == Approx(3.1e-2 / 7.4e-3));
  CHECK(row.worst->recording == "gemma2-a4/whole-bf16");
  CHECK(outcome.rows[1].worst->gate == "token");
  CHECK(outcome.rows[1].worst->ratio == 0.5);
  CHECK(outcome.rows[2].block == "linear");
  CHECK_FALSE(outcome.rows[2].worst.has_value());
}

TEST_CASE("a block's rows are neighbours, and of equal gates the last one is named") {
  CheckpointResult late = passing("sdpa");
  late.dtype = "f32";
  late.outputs[0].gates = {sample_gate("structure", 0, 0, 0), sample_gate("bits", 0, 0, 0)};
  const Outcome outcome = outcome_of({passing("sdpa"), passing("linear"), late}, {});
  REQUIRE(outcome.rows.size() == 3);
  CHECK(outcome.rows[1].block == "sdpa");
  CHECK(outcome.rows[1].dtype == "f32");
  CHECK(outcome.rows[1].worst->gate == "bits");
  CHECK(outcome.rows[2].block == "linear");
}

TEST_CASE("the ratio of a gate is finite only if it has a finite limit and statistic") {
  CHECK(ratio(sample_gate("g", 0, 0, 0)) == 0);
  CHECK(ratio(sample_gate("g", 1, 0, 0)) == kInf);
  CHECK(ratio(sample_gate("g", kNan, 1, 0)) == kInf);
  CHECK(ratio(sample_gate("g", 1, kNan, 0)) == kInf);
  CHECK(ratio(sample_gate("g", kInf, 1, 0)) == kInf);
  CHECK(ratio(sample_gate("g", 1, 4, 0)) == 0.25);
  CHECK(ratio(sample_gate("g", 3, 2, 0)) == 1.5);
}

TEST_CASE("reasons are grouped, unsupported before blind") {
  const Outcome outcome = outcome_of(
      {stopped(Status::blind, "zero"), stopped(Status::unsupported, "no conv"), passing(),
       stopped(Status::unsupported, "no conv"), stopped(Status::unsupported, "no f16")},
      {});
  REQUIRE(outcome.not_judged.size() == 3);
  CHECK(outcome.not_judged[0].reason == "no conv");
  CHECK(outcome.not_judged[0].checkpoints == 2);
  CHECK(outcome.not_judged[1].reason == "no f16");
  CHECK(outcome.not_judged[2].status == Status::blind);
}

TEST_CASE("an interrupted run says so and has the signal's exit code, whatever was judged") {
  Request request;
  request.checkpoints = 5;
  request.signal = 15;
  using enum Status;
  const Outcome some = outcome_of(of({pass, fail}), request);
  CHECK(some.exit_code == 143);
  CHECK(some.interrupted == "SIGTERM");
  CHECK(some.verdict ==
        "interrupted by SIGTERM after 2 of 5 checkpoints, until then fail: 1 of 2 "
        "checkpoints are worse than they may be");
  request.signal = 2;
  const Outcome none = outcome_of({}, request);
  CHECK(none.exit_code == 130);
  CHECK(none.verdict == "interrupted by SIGINT after 0 of 5 checkpoints");
}

TEST_CASE("contracts that widened limits are in the verdict, each once") {
  CheckpointResult one = passing(), other = passing();
  one.looser = {"linear: acc2"};
  other.looser = {"linear: acc2", "rms_norm: acc8"};
  const std::string verdict = outcome_of({passing(), one, other}, {}).verdict;
  CHECK(verdict.ends_with("; judged by looser contracts: linear: acc2, rms_norm: acc8"));
  CHECK(outcome_of({passing()}, {}).verdict.find("looser") == std::string::npos);
}

}  // namespace
}  // namespace plumb::harness
