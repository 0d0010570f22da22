#include "harness/report/junit.h"

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

std::string junit(const std::vector<CheckpointResult>& results) {
  return junit_xml(sample_run(), results, sample_outcome(results));
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Whether start and end tags match and no text holds a bare "<": enough of a parser for what is
// written.
bool balanced(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = xml.find("?>") + 2;
  while ((at = xml.find('<', at)) != std::string::npos) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" \n") - (tag[0] == '/'));
    if (contains(tag, "<") || name.empty()) return false;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  return open.empty();
}

TEST_CASE("a suite per recording and device, a case per checkpoint") {
  CheckpointResult elsewhere = passing();
  elsewhere.recording = "llama-a1/whole-f32";
  CheckpointResult blind = passing();
  blind.blind_to = {"window"};
  CheckpointResult seeing = passing();
  seeing.features = {"window"};
  const std::string xml =
      junit({blind, elsewhere, seeing, stopped(Status::unsupported, "no", "conv", "gpu")});
  CHECK(balanced(xml));
  CHECK(contains(
      xml,
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"harness\" tests=\"4\" "
      "failures=\"0\" errors=\"0\" time=\"1.500000\">"));
  CHECK(count(xml, "<testsuite ") == 3);
  CHECK(
      contains(xml,
               "<testsuite name=\"gemma2-a4/whole-bf16 on cpu\" tests=\"2\" failures=\"0\" "
               "errors=\"0\" time=\"0.500000\" skipped=\"0\" timestamp=\"2000-01-01T00:00:00Z\">"));
  CHECK(contains(xml,
                 "<testcase classname=\"gemma2-a4/whole-bf16 on cpu\" "
                 "name=\"model.layers.0.self_attn:sdpa#0 bf16\" time=\"0.250000\">\n"
                 "      <system-out>blind to: window</system-out>"));
  CHECK(contains(xml, "<skipped message=\"unsupported: no\"/>"));
  CHECK(contains(xml, "<property name=\"compiler\" value=\"GCC 12.2.0\"/>"));
}

TEST_CASE("failures, errors and skips are distinct") {
  using enum Status;
  const std::vector<std::pair<Status, std::string>> table = {
      {fail, "failure"},    {nondeterministic, "failure"},
      {bad_input, "error"}, {device_error, "error"},
      {timeout, "error"},   {internal_error, "error"},
      {blind, "skipped"},   {unsupported, "skipped"}};
  for (const auto& [status, element] : table) {
    const std::string xml = junit({passing(), stopped(status, "the reason")});
    CAPTURE(xml);
    CHECK(balanced(xml));
    CHECK(contains(xml, "<" + element));
    CHECK(contains(xml, "the reason"));
    const bool of_selection = status == blind;  // a wholly blind block
    CHECK(contains(xml, "<testsuite name=\"selection\"") == of_selection);
    CHECK(count(xml, "<failure") == (element == "failure" || of_selection));
    CHECK(count(xml, "<error") == (element == "error"));
  }
  CHECK(contains(
      junit({failing()}),
      "<failure type=\"fail\" message=\"tensor error 0.031, allowed 0.0074\">FAIL  sdpa "));
  CHECK(contains(junit({failing()}), "&#10;      again: harness --fixture"));
}

TEST_CASE("a viewer is green only if the exit code is 0") {
  CHECK_FALSE(contains(junit({passing()}), "<failure"));
  CheckpointResult blind = passing();
  blind.blind_to = {"window"};
  const std::string xml = junit({blind});
  CHECK(balanced(xml));
  CHECK(contains(xml, "<testsuites name=\"harness\" tests=\"2\" failures=\"1\""));
  CHECK(contains(xml,
                 "<failure type=\"exit code 8\" message=\"blind: nothing failed, but no selected "
                 "checkpoint can see "
                 "sdpa window\">"));
  CHECK(contains(junit({}), "<failure type=\"exit code 2\""));
}

TEST_CASE("hostile text and times stay inside their place") {
  CheckpointResult strange = hostile(failing());
  strange.seconds = kNan;
  const std::string xml = junit({strange, hostile(stopped(Status::blind, "")), hostile(passing())});
  CHECK(balanced(xml));
  CHECK(contains(xml, "time=\"0.000000\""));
  CHECK(contains(xml, "&#60;b&#62;"));
  CHECK_FALSE(contains(xml, "]]>"));
  for (const char c : xml) CHECK((c == '\n' || (c >= 0x20 && c <= 0x7e)));
}

TEST_CASE("an interrupt is a failure next to those of checkpoints") {
  Request request;
  request.signal = 2;
  request.checkpoints = 3;
  const std::vector<CheckpointResult> results = {passing(), sample_result("sdpa", Status::fail)};
  const std::string xml = junit_xml(sample_run(), results, outcome_of(results, request));
  CHECK(balanced(xml));
  CHECK(contains(xml, "name=\"what was selected was judged\""));
  CHECK(contains(xml, "interrupted by SIGINT after 2 of 3 checkpoints"));
  CHECK(count(xml, "<failure") == 2);
}

TEST_CASE("a suite's properties are its known bugs nearest to passing") {
  CheckpointResult first = passing(), second = passing();
  second.checkpoint = "near";
  first.margins = {{"softcap left out", kInf}, {"window one key longer", 5}};
  second.margins = {{"softcap left out", 0.75}};
  const std::string all = junit({first, second});
  const std::string bug = "      <property name=\"margin of sdpa: softcap left out\" value=\"";
  CHECK(contains(all, bug + "0.75x the limit: would pass, near bf16\"/>\n"));
  CHECK(contains(all, "window one key longer\" value=\"5x the limit, " + first.checkpoint));
  CHECK(balanced(all));
  first.margins->clear();
  for (int i = 0; i < 1000; ++i) first.margins->push_back({"bug " + std::to_string(i), 9});
  CHECK(count(junit({first}), "margin of") == 20);
}

}  // namespace
}  // namespace plumb::harness
