#include "harness/report/markdown.h"

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

std::string markdown(const std::vector<CheckpointResult>& results) {
  return markdown_summary(sample_run(), results, sample_outcome(results));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

TEST_CASE("the summary of a run") {
  CheckpointResult blind = passing("rms_norm");
  blind.blind_to = {"weight"};
  const std::string all =
      markdown({passing(), failing(), blind, stopped(Status::unsupported, "no conv", "conv"),
                stopped(Status::timeout, "60 s")});
  CHECK(contains(
      all,
      "## Not verified\n\n**timeout: 1 of 5 checkpoints did not finish in time** (exit code 6)"));
  CHECK(contains(all, "2 pass, 1 fail, 1 unsupported, 1 timeout in 1.50 s, cpu: 2 cores, avx2.\n"));
  CHECK(contains(all,
                 "\n| sdpa | cpu | bf16 | 1 | 1 | 0 | 0 | 0 | 4.19 (tensor) | gemma2-a4/whole-bf16 "
                 "model.layers.0.self_attn:sdpa#0 |\n"));
  CHECK(contains(all, "\n| linear | cpu | bf16 | 0 | 0 | 0 | 0 | 1 | - | |\n"));
  CHECK(
      contains(all, "### Failures\n\n```text\n" + std::string("FAIL  sdpa  gemma2-a4/whole-bf16")));
  CHECK(
      contains(all, "\n      again: harness --fixture fixtures/gemma2-a4/whole-bf16 --checkpoint"));
  CHECK(contains(all, "TIMEOUT  linear"));
  CHECK(contains(all, "- rms_norm: weight is **seen by no checkpoint** (1 have it)\n"));
  CHECK(contains(all, "- unsupported: conv on cpu bf16 (1): no conv\n"));
  CHECK(contains(all, "<code>harness --device cpu</code>"));
}

TEST_CASE("known bugs are listed with the checkpoint where they are nearest to passing") {
  CheckpointResult near = passing(), far = passing();
  near.checkpoint = "near";
  near.margins = {{"softcap left out", 0.75}, {"a | b", 7}};
  far.margins = {{"softcap left out", kInf}, {"a | b", 8}};
  const std::string all = markdown({far, near});
  CHECK(contains(all,
                 "### Known bugs nearest to passing\n\n"
                 "| block | bug | would pass in | caught in | nearest | at |\n"
                 "|---|---|--:|--:|---|---|\n"
                 "| sdpa | softcap left out | 1 | 1 | 0.75x the limit: would pass | "
                 "gemma2-a4/whole-bf16 near on cpu bf16 |\n"
                 "| sdpa | a &#124; b | 0 | 2 | 7x the limit | "
                 "gemma2-a4/whole-bf16 near on cpu bf16 |\n"));
}

TEST_CASE("a green run is short") {
  const std::string all = markdown({passing()});
  CHECK(contains(all, "## Verified\n"));
  CHECK_FALSE(contains(all, "###"));
  CHECK(contains(markdown({}), "## Not verified\n\n**nothing was selected"));
}

TEST_CASE("it stays short however much fails") {
  std::vector<CheckpointResult> results;
  for (int i = 0; i < 2000; ++i) {
    CheckpointResult result = failing();
    result.block = "b" + std::to_string(i);
    result.blind_to = {std::string(5000, 'f')};
    result.details = std::vector<std::string>(100, std::string(5000, 'd'));
    results.push_back(result);
    results.push_back(stopped(Status::unsupported, std::string(5000, 'r'), result.block));
  }
  const std::string all = markdown(results);
  CHECK(all.size() < 500'000);
  CHECK(contains(all, "1980 more causes of failures are in the JSON lines."));
  CHECK(contains(all, "1800 more rows are in the JSON lines."));
  CHECK(contains(all, "1950 more features are in the JSON lines."));
  CHECK(contains(all, "1950 more reasons are in the JSON lines."));
  // However long a failure's text, the command that repeats it stays.
  size_t commands = 0;
  for (const std::string& line : lines_of(all)) commands += line.starts_with("      again: ");
  CHECK(commands == 20);
}

TEST_CASE("hostile text adds no cell, line, element or fence") {
  const std::vector<CheckpointResult> tame = {failing(), stopped(Status::unsupported, "r"),
                                              passing()};
  std::vector<CheckpointResult> results;
  for (const CheckpointResult& result : tame) results.push_back(hostile(result));
  const std::string all = markdown(results);
  bool in_code = false;
  std::string fence;
  for (const std::string& line : lines_of(all)) {
    CAPTURE(line);
    if (!in_code && line.starts_with("```")) {
      fence = line.substr(0, line.find('t'));
      in_code = true;
    } else if (in_code) {
      in_code = line != fence;
      CHECK((!in_code || line.empty() || line.starts_with("FAIL  ") || line.starts_with("      ")));
    } else {
      if (line.starts_with("| ")) CHECK(std::count(line.begin(), line.end(), '|') == 11);
      CHECK_FALSE(contains(line, "<b>"));
      CHECK_FALSE(contains(line, "`"));
    }
  }
  CHECK_FALSE(in_code);
  for (const char c : all) CHECK((c == '\n' || (c >= 0x20 && c <= 0x7e)));
}

}  // namespace
}  // namespace plumb::harness
