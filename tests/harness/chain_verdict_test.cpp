// What becomes of a chain whose rows cannot all be judged.
#include "harness/chain/chain_verdict.h"

#include "harness/judge/limits.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

ChainRow row_at_step(const std::string& path, int64_t step, double reference) {
  ChainRow out;
  out.checkpoint = text(path, '#', step);
  out.block = path == "lm_head" ? "lm_head" : "decoder_layer";
  out.output = "out";
  out.step = step;
  out.reference = out.chained = reference;
  out.chained_limit = 2 * reference;
  out.saturated = is_saturated(DType::bf16, reference);
  return out;
}

CheckpointResult settled(const std::vector<ChainRow>& rows) {
  CheckpointResult out;
  out.chain = ChainReport();
  out.outputs = {chain_verdict(rows)};
  settle_chain(out, rows, DType::bf16, false);
  return out;
}

TEST_CASE("saturated rows are set aside and named, the rest is judged") {
  const std::vector<ChainRow> rows = {
      row_at_step("layers.0", 0, 0.01), row_at_step("lm_head", 0, 0.02),
      row_at_step("layers.0", 1, 0.03), row_at_step("lm_head", 1, 0.4)};
  CheckpointResult result = settled(rows);
  CHECK(result.status == Status::pass);
  REQUIRE(result.details.size() == 1);
  CHECK(result.details[0] ==
        "1 of 4 outputs are not judged; the worst: lm_head#1 is saturated: the reference's own "
        "error is 0.4, above 0.1");
  std::vector<ChainRow> wrong = rows;
  wrong[2].chained = 0.5;
  CHECK(settled(wrong).status == Status::fail);
}

TEST_CASE("a layer that no step can judge makes its chain blind") {
  const CheckpointResult result =
      settled({row_at_step("layers.0", 0, 0.01), row_at_step("layers.1", 0, 0.2),
               row_at_step("layers.0", 1, 0.03), row_at_step("layers.1", 1, 0.4)});
  CHECK(result.status == Status::blind);
  CHECK(result.reason ==
        "layers.1#0 is saturated: the reference's own error is 0.2, above 0.1; it is judged in no "
        "other step either");
}

TEST_CASE("logits that simulations call ill conditioned are judged by their distributions") {
  ChainRow logits = row_at_step("lm_head", 0, 0.03);
  logits.saturated = true;
  logits.simulated = 0.2;
  CHECK(settled({row_at_step("layers.0", 0, 0.01), logits}).status == Status::pass);
  ChainRow layer = row_at_step("layers.0", 0, 0.03);
  layer.saturated = true;
  layer.simulated = 0.2;
  const CheckpointResult result = settled({layer, logits});
  CHECK(result.status == Status::blind);
  CHECK(result.reason.starts_with("layers.0#0 is ill conditioned: the error is 0.03, correct"));
}

}  // namespace
}  // namespace plumb::harness
