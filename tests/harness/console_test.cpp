#include "harness/report/console.h"

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"

namespace plumb::harness {
namespace {

TEST_CASE("numbers are short") {
  const std::vector<std::pair<double, std::string>> table = {{0, "0"},
                                                             {-0.0, "0"},
                                                             {3.1e-2, "3.1e-2"},
                                                             {7.44e-3, "7.4e-3"},
                                                             {0.4996, "0.5"},
                                                             {0.12345, "0.12"},
                                                             {1.5, "1.5"},
                                                             {4.1891, "4.19"},
                                                             {412, "412"},
                                                             {1e6, "1000000"},
                                                             {1234.5, "1.2e3"},
                                                             {1e300, "1e300"},
                                                             {1.26e-300, "1.3e-300"},
                                                             {-0.25, "-0.25"},
                                                             {0.09999, "1e-1"},
                                                             {kInf, "inf"},
                                                             {-kInf, "-inf"},
                                                             {kNan, "nan"},
                                                             {999.6, "1e3"}};
  for (const auto& [x, expected] : table) CHECK(short_number(x) == expected);
}

TEST_CASE("seconds have two decimals") {
  CHECK(seconds_text(0.0671) == "0.07");
  CHECK(seconds_text(63.5) == "63.50");
  CHECK(seconds_text(kNan) == "nan");
}

TEST_CASE("a failure's text says by how much, where, and how to repeat it") {
  CHECK(
      failure_text(failing()) ==
      "FAIL  sdpa  gemma2-a4/whole-bf16  model.layers.0.self_attn:sdpa#0     cpu bf16 fused\n"
      "      tensor error 3.1e-2, allowed 7.4e-3 (reference 3.6e-3)   worst head 3 (4.2x the "
      "limit), "
      "in token >= 5\n"
      "      element error 0.5, allowed 0.25 (reference 0.1)   worst token 5, head 3, head_dim 1\n"
      "      composed (--no-fuse): pass  -> look at a fused op, not a primitive\n"
      "      ran: sdpa/avx2\n"
      "      again: harness --fixture fixtures/gemma2-a4/whole-bf16 --checkpoint "
      "'model.layers.0.self_attn:sdpa#0' --device cpu\n");
}

TEST_CASE("gates of every kind are put in words") {
  CheckpointResult result = failing();
  OutputVerdict& output = result.outputs[0];
  output.where.reset();
  SECTION("gain") {
    output.gates = {sample_gate("gain", 0.01, 0.001, 0.002)};
    CHECK(contains(failure_text(result), "\n      gain 1e-2, allowed 1e-3 (reference 2e-3)\n"));
  }
  SECTION("conformance") {
    output.gates = {{"conformance", 40, 8.5, {{"q", 0.01}}, false, ""}};
    output.conformance = Conformance{100, 40, 0, 2, 0.01, 8.5, false};
    CHECK(contains(failure_text(result),
                   "\n      conformance: 40 of 100 elements differ in bits from the rounded model, "
                   "allowed 8.5\n"));
  }
  SECTION("a count is in the output's reason, other failed gates follow") {
    output.reason = result.reason = "3 elements of the wrong class, the first at token 5: nan";
    output.gates = {{"classes", 3, 0, {}, false, "token 5"}, sample_gate("tensor", kNan, 1, 0.5)};
    const std::string all = failure_text(result);
    CHECK(contains(all,
                   "\n      3 elements of the wrong class, the first at token 5: nan\n"
                   "      tensor error nan, allowed 1 (reference 0.5)\n"));
  }
  SECTION("a gate that is not known here") {
    output.gates = {{"float64 agreement", 7.25, 1, {}, false, "token 5"}};
    CHECK(contains(failure_text(result),
                   "\n      float64 agreement: 7.25, allowed 1   worst token 5\n"));
  }
}

TEST_CASE("with several outputs each line names its own") {
  CheckpointResult result = failing();
  result.outputs.push_back(passing().outputs[0]);
  result.outputs[1].name = "keys";
  result.reason = "out: " + result.outputs[0].reason;
  const std::string all = failure_text(result);
  CHECK(contains(all, "\n      out: tensor error 3.1e-2"));
  CHECK_FALSE(contains(all, "keys"));
}

TEST_CASE("a reason that no gate tells is printed first") {
  CheckpointResult result = failing();
  result.reason = "wrote 17 bytes before the start of \"out\"";
  CHECK(contains(failure_text(result),
                 " fused\n      wrote 17 bytes before the start of \"out\"\n      tensor error"));
  const std::string lost = failure_text(stopped(Status::device_error, "[cuda] device lost"));
  CHECK(lost ==
        "DEVICE ERROR  linear  gemma2-a4/whole-bf16  model.layers.0.self_attn:linear#0     "
        "cpu bf16\n      [cuda] device lost\n      ran: sdpa/avx2\n");
}

TEST_CASE("a line per checkpoint") {
  CheckpointResult pass = passing();
  CHECK(checkpoint_line(pass) ==
        "pass  sdpa  gemma2-a4/whole-bf16  model.layers.0.self_attn:sdpa#0     cpu bf16   "
        "0.5 of the limit (token)\n");
  pass.blind_to = {"window", "gqa"};
  CHECK(contains(checkpoint_line(pass), "(token)   blind to: window, gqa\n"));
  pass.margins = {{"softcap left out", kInf}, {"window one key longer", 0.75}, {"scale", 12}};
  CHECK(contains(checkpoint_line(pass),
                 "gqa   nearest known bug: window one key longer, 0.75x the limit: would pass\n"));
  pass.margins = {{"softcap left out", kInf}, {"scale", 12}};
  CHECK(contains(checkpoint_line(pass), "known bug: scale, 12x the limit\n"));
  CHECK(contains(checkpoint_line(stopped(Status::unsupported, "no conv")), "cpu bf16   no conv\n"));
  CHECK(contains(checkpoint_line(failing()), " fused   tensor error 0.031, allowed 0.0074\n"));
}

TEST_CASE("the end of a run") {
  CheckpointResult blind = passing("rms_norm");
  blind.features = {"eps"};
  blind.blind_to = {"weight"};
  CheckpointResult half = passing("rms_norm");
  half.blind_to = {"eps"};
  blind.margins = {{"eps ten times as large", 1}, {"norm weight left out", 1.01}};
  half.margins = {{"eps ten times as large", 1.01}};
  const std::vector<CheckpointResult> results = {passing(),
                                                 failing(),
                                                 blind,
                                                 half,
                                                 stopped(Status::unsupported, "no conv", "conv"),
                                                 stopped(Status::unsupported, "no conv", "conv")};
  CHECK(closing_text(sample_outcome(results)) ==
        "block     device  dtype  checkpoints  pass  fail  unsupported  worst/limit  gate    "
        "recording\n"
        "sdpa      cpu     bf16             2     1     1            0         4.19  tensor  "
        "gemma2-a4/whole-bf16\n"
        "rms_norm  cpu     bf16             2     2     0            0          0.5  token   "
        "gemma2-a4/whole-bf16\n"
        "conv      cpu     bf16             2     0     0            2            -\n"
        "\n"
        "blind: no selected checkpoint can see\n"
        "  rms_norm: weight (1 checkpoint blind to it)\n"
        "\n"
        "seen only in some of the checkpoints that have it\n"
        "  rms_norm: eps (blind in 1, seen in 1)\n"
        "\n"
        "known bugs that would pass\n"
        "  rms_norm: eps ten times as large (in 1 checkpoint, caught in 1)\n"
        "\n"
        "unsupported\n"
        "  conv cpu bf16 (2 checkpoints): no conv\n"
        "\n"
        "6 checkpoints in 1.50 s: 3 pass, 1 fail, 2 unsupported   "
        "fail: 1 of 6 checkpoints are worse than they may be\n");
}

TEST_CASE("an empty run is never green") {
  CHECK(closing_text(sample_outcome({})) ==
        "0 checkpoints in 1.50 s   nothing was selected, so nothing was verified\n");
}

TEST_CASE("colours are on request only and do not move columns") {
  const std::vector<CheckpointResult> results = {failing(), passing("rms_norm"),
                                                 stopped(Status::blind, "zero")};
  const Outcome outcome = sample_outcome(results);
  for (const auto& [plain, painted] :
       {std::pair(failure_text(failing()), failure_text(failing(), true)),
        std::pair(checkpoint_line(passing()), checkpoint_line(passing(), true)),
        std::pair(closing_text(outcome), closing_text(outcome, true))}) {
    CHECK_FALSE(contains(plain, "\x1b"));
    CHECK(contains(painted, "\x1b["));
    std::string stripped;
    for (size_t i = 0; i < painted.size(); ++i) {
      if (painted[i] == '\x1b') i = painted.find('m', i);
      else stripped += painted[i];
    }
    CHECK(stripped == plain);
  }
}

TEST_CASE("recorded names cannot steer the terminal") {
  std::vector<CheckpointResult> results = {hostile(failing()), hostile(passing()),
                                           hostile(stopped(Status::unsupported, "")),
                                           hostile(stopped(Status::blind, ""))};
  std::string all = closing_text(sample_outcome(results));
  for (const CheckpointResult& result : results)
    all += failure_text(result) + checkpoint_line(result);
  for (const char c : all) CHECK((c == '\n' || (c >= 0x20 && c <= 0x7e)));
  for (CheckpointResult& result : results) result.recording = std::string(70000, 'r');
  CHECK(closing_text(sample_outcome(results)).size() < 5000);
  // One line per gate, detail, reason and so on: a line feed in a name adds none.
  const std::string failure = failure_text(results[0]);
  CHECK(std::count(failure.begin(), failure.end(), '\n') == 6);
}

}  // namespace
}  // namespace plumb::harness
