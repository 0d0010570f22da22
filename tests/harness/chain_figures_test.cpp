// Forecast, excess, diagnosis and first divergence on chains made up of numbers.
#include "harness/judge/chain_figures.h"

#include <cmath>

#include "harness/chain/chain_descent.h"
#include "harness/judge/limits.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

// A clean chain in bf16: embedding, layers, norm; every block doubles what came in and adds 1e-3.
std::vector<ChainRow> clean_chain(size_t count) {
  std::vector<ChainRow> rows(count);
  for (size_t i = 0; i < count; ++i) {
    ChainRow& row = rows[i];
    row.checkpoint = "model.layers." + std::to_string(i) + "#0";
    row.output = "out";
    row.isolated = row.isolated_reference = 1e-3;
    row.isolated_limit = 2e-3;
    if (i > 0) {
      row.before = static_cast<int64_t>(i) - 1;
      row.amplification = 2;
    }
    row.reference = i == 0 ? 1e-3 : std::hypot(2 * rows[i - 1].reference, 1e-3);
    row.chained = 1.02 * row.reference;
    row.chained_limit = chained_limit(DType::bf16, 1 << 20, row.reference, 0);
  }
  forecast(rows);
  return rows;
}

TEST_CASE("forecast: amplified error of what came in, and one's own, in quadrature") {
  const std::vector<ChainRow> rows = clean_chain(4);
  CHECK(rows[0].forecast == Approx(1e-3));
  CHECK(rows[1].forecast == Approx(std::sqrt(5.0) * 1e-3));
  CHECK(rows[3].forecast == Approx(std::sqrt(85.0) * 1e-3));  // 64 + 16 + 4 + 1
  CHECK(rows[3].excess() == Approx(1.02));
  CHECK(rows[3].inherited(rows) == Approx(2 * rows[2].chained));
  CHECK(std::isnan(rows[0].inherited(rows)));
}

TEST_CASE("forecast: after exact input the reference says what states add") {
  std::vector<ChainRow> rows = clean_chain(1);
  rows[0].reference = 5e-3;
  forecast(rows);
  CHECK(rows[0].forecast == Approx(5e-3));
  rows[0].output = "keys_after";
  rows[0].forecast = kNoFigure;
  forecast(rows);
  CHECK(std::isnan(rows[0].forecast));
  CHECK(std::isnan(rows[0].excess()));
}

TEST_CASE("a chained limit is c kappa times the reference's error or the floor") {
  const int64_t many = int64_t{1} << 40;
  CHECK(chained_limit(DType::bf16, many, 1e-2, 1e-3) == Approx(1.5e-2).epsilon(1e-4));
  CHECK(chained_limit(DType::f16, many, 1e-4, 1e-3) == Approx(1.5e-3).epsilon(1e-4));
  CHECK(chained_limit(DType::f32, many, 1e-6, 1e-7) == Approx(4e-6).epsilon(1e-4));
  CHECK(chained_limit(DType::f32, 9, 1, 0) == Approx(4 * kappa(9, 1)));
}

TEST_CASE("saturated: in 16 bits only, above a tenth") {
  CHECK(is_saturated(DType::bf16, 0.11));
  CHECK_FALSE(is_saturated(DType::bf16, 0.1));
  CHECK_FALSE(is_saturated(DType::f32, 0.5));
  std::vector<ChainRow> rows = clean_chain(2);
  rows[1].saturated = true;
  rows[1].chained = 1;
  CHECK_FALSE(rows[1].chained_failed());
  diagnose(rows);
  CHECK(rows[1].diagnosis == Diagnosis::saturated);
  rows[1].changed = 1;  // bytes are bytes
  CHECK(rows[1].chained_failed());
}

TEST_CASE(
    "few elements may exceed their forecast by more, as many as the narrowest layer on the way") {
  std::vector<ChainRow> rows = clean_chain(3);
  rows[0].width = 64;
  rows[2].width = 256;  // logits
  rows[2].vectors = 2;
  forecast(rows);
  CHECK(rows[1].width == 64);
  CHECK(rows[2].width == 64);
  CHECK(rows[2].excess_limit() == Approx(2 * kappa(128, 1)));
  rows[2].chained_limit = 1;
  rows[2].chained = 2.5 * rows[2].forecast;
  CHECK_FALSE(rows[2].chained_failed());
  rows[2].chained = 2.6 * rows[2].forecast;
  CHECK(rows[2].chained_failed());
}

TEST_CASE("an excess above two fails though the ratio passes and so does NaN") {
  std::vector<ChainRow> rows = clean_chain(2);
  CHECK_FALSE(rows[1].chained_failed());
  rows[1].chained = 2.1 * rows[1].forecast;
  rows[1].chained_limit = 1;
  CHECK(rows[1].chained_failed());
  rows[1].floor = 2 * rows[1].forecast;  // a forecast is never below the floor
  CHECK_FALSE(rows[1].chained_failed());
  rows[1].chained = kNoFigure;
  CHECK(rows[1].chained_failed());
}

TEST_CASE("what simulated correct kernels reach is no failure, what they do not is") {
  std::vector<ChainRow> rows = clean_chain(2);
  rows[1].chained = 1;
  rows[1].simulated = 0.9;
  CHECK(rows[1].chained_failed());
  rows[1].simulated = 1;
  CHECK_FALSE(rows[1].chained_failed());
  rows[1].changed = 1;
  CHECK(rows[1].chained_failed());
  rows[1].changed = 0;
  rows[1].chained = kNoFigure;
  CHECK(rows[1].chained_failed());
}

TEST_CASE("a chain that fails names a suspect, or says why it cannot") {
  std::vector<ChainRow> rows = clean_chain(3);
  Culprit culprit = suspect(rows);
  CHECK(culprit.name.empty());
  REQUIRE(culprit.words.size() == 1);
  CHECK(culprit.words[0].starts_with("no culprit: no block could be run"));

  for (ChainRow& row : rows) row.isolated = row.shadow = 1e-3;
  CHECK(suspect(rows).name.empty());
  CHECK(suspect(rows).words[0].starts_with("no culprit: every block is right"));

  rows[1].shadow = 3e-3;
  culprit = suspect(rows);
  CHECK(culprit.name == rows[1].checkpoint);
  CHECK(culprit.words[0].starts_with("suspected wiring: "));

  ChainRow state = rows[0];
  state.checkpoint = "cache#0";
  state.output = "keys_after";
  state.chained = 1;
  rows.insert(rows.begin(), state);
  CHECK(suspect(rows).name == "cache#0");
  rows[1].chained = 1;  // its layer is off, too
  CHECK(suspect(rows).name == rows[2].checkpoint);
}

struct Expected {
  bool alone, apart, high;
  Diagnosis diagnosis;
};

TEST_CASE("diagnosis: isolated, chained and shadow together") {
  const Expected table[] = {
      {true, true, true, Diagnosis::kernel},   {true, false, true, Diagnosis::kernel},
      {false, true, true, Diagnosis::wiring},  {false, true, false, Diagnosis::inherited},
      {false, false, false, Diagnosis::clean}, {true, false, false, Diagnosis::golden},
  };
  for (const Expected& expected : table) {
    std::vector<ChainRow> rows = clean_chain(1);
    rows[0].isolated_failed = expected.alone;
    rows[0].chained = expected.apart ? 1 : 1e-3;
    rows[0].shadow_limit = 2e-3;
    rows[0].shadow = expected.high ? 1e-2 : 1e-3;
    diagnose(rows);
    CAPTURE(expected.alone, expected.apart, expected.high);
    CHECK(name_of(rows[0].diagnosis) == name_of(expected.diagnosis));
  }
}

TEST_CASE("first divergence: alone before shadow, and the onset may come later") {
  std::vector<ChainRow> rows = clean_chain(4);
  CHECK(first_divergence(rows) == -1);
  CHECK(onset(rows) == -1);
  rows[3].chained = 1;
  CHECK(first_divergence(rows) == -1);
  CHECK(onset(rows) == 3);
  rows[1].shadow_limit = rows[2].shadow_limit = 1e-3;
  rows[2].shadow = rows[1].shadow = 2e-3;
  CHECK(first_divergence(rows) == 1);
  rows[3].isolated_failed = true;
  CHECK(first_divergence(rows) == 3);
}

}  // namespace
}  // namespace plumb::harness
