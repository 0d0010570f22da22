#include "harness/run/failure_groups.h"

#include "harness/report/console.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

CheckpointResult numbered(CheckpointResult result, int i) {
  result.checkpoint = "c" + std::to_string(i);
  result.again = "again " + std::to_string(i);
  return result;
}

// As the emulator tells them: launches, offsets and the order of the two accesses differ.
CheckpointResult race(int i, const std::string& block) {
  const std::string place = std::to_string(64 * i);
  const char* verbs[2][2] = {{"write", "read"}, {"read", "write"}};
  return numbered(
      stopped(Status::device_error,
              text("[emu-check:64] tile_kernel<", i % 3, ">: race: the ", verbs[i % 2][0],
                   " (4 bytes, shared + ", place, ") at kernels/gpu/sdpa.cu:", 80 + i, " and the ",
                   verbs[i % 2][1], " at kernels/gpu/sdpa.cu:95 by thread ", i,
                   " have no barrier between them"),
              block),
      i);
}

TEST_CASE("failures of one cause are one group, whose worst is shown") {
  std::vector<CheckpointResult> results = {passing()};
  for (int i = 0; i < 38; ++i) {
    results.push_back(numbered(failing(), i));
    results.back().outputs[0].gates[1].statistic = i == 7 ? 1 : 0.02;
  }
  const std::vector<FailureGroup> groups = failure_groups(results);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].checkpoints == 38);
  CHECK(groups[0].checkpoint == "c7");
  CHECK(groups[0].again == "again 7");
  CHECK(contains(cause_text(groups[0]),
                 "sdpa cpu bf16: 38 checkpoints; worst 135x the limit in gemma2-a4/whole-bf16 c7"));
}

TEST_CASE("another block, device, dtype, known bug or recording's chain is another cause") {
  std::vector<CheckpointResult> results(6, failing());
  results[1].block = "linear";
  results[2].device = "oracle";
  results[3].dtype = "f32";
  results[4].known_bug = KnownBugFound{"softcap left out", 0, 0.1, ""};
  results[5].status = Status::nondeterministic;
  CHECK(failure_groups(results).size() == 6);
  CHECK(contains(cause_text(failure_groups(results)[4]), "1 checkpoint like this: softcap left"));
  std::vector<CheckpointResult> chains(2, failing());
  for (CheckpointResult& chain : chains) chain.chain.emplace();
  chains[1].recording = "other/whole-f32";
  CHECK(failure_groups(chains).size() == 2);
}

TEST_CASE("a race is reported once, wherever it happens") {
  std::vector<CheckpointResult> results;
  for (int i = 0; i < 35; ++i) results.push_back(race(i, i % 2 ? "sdpa" : "attention"));
  const std::vector<FailureGroup> groups = failure_groups(results);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].checkpoints == 35);
  CHECK(contains(cause_text(groups[0]),
                 "several blocks cpu bf16: 35 checkpoints like this: race in sdpa.cu"));
  FirstFailures first;
  int told = 0;
  for (const CheckpointResult& result : results) told += first.is_first(result);
  CHECK(told == 1);
  CHECK(first.is_first(stopped(Status::device_error, "out of memory")));
}

TEST_CASE("numbers are left out of a cause only where they differ") {
  const auto other_hash = [](const char* hash) {
    return stopped(Status::bad_input, text("layers.3.weight has SHA-256 ", hash, ", not c282"));
  };
  std::vector<CheckpointResult> results(2, other_hash("7494"));
  CHECK(contains(cause_text(failure_groups(results)[0]),
                 "2 checkpoints like this: layers.3.weight has SHA-256 7494, not c282"));
  results.push_back(other_hash("85ae"));
  REQUIRE(failure_groups(results).size() == 1);
  CHECK(contains(cause_text(failure_groups(results)[0]), "3 checkpoints like this: layers.#"));
}

TEST_CASE("the end of a run has a block per cause that is shared") {
  std::vector<CheckpointResult> results = {failing()};
  CHECK_FALSE(contains(closing_text(sample_outcome(results)), "failures by cause"));
  for (int i = 1; i < 386; ++i) results.push_back(numbered(failing(), i));
  const std::string all = closing_text(sample_outcome(results));
  CHECK(contains(all,
                 "\nfailures by cause\n"
                 "FAIL  sdpa cpu bf16: 386 checkpoints; worst 4.19x the limit in "
                 "gemma2-a4/whole-bf16 model.layers.0.self_attn:sdpa#0\n"
                 "      again: harness --fixture"));
  CHECK(std::count(all.begin(), all.end(), '\n') < 10);
}

}  // namespace
}  // namespace plumb::harness
