#include "blocks/sdpa.h"

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

FullyMasked read_fully_masked(const Params& params) {
  const std::string& name = params.string("fully_masked");
  if (name == "uniform") return FullyMasked::uniform;
  if (name == "zero") return FullyMasked::zero;
  if (name == "excluded") return FullyMasked::excluded;
  throw BadInput(
      text(params.where(), ": fully_masked is \"", name, "\", expected uniform, zero or excluded"));
}

}  // namespace

AttentionMask read_mask(const Params& params) {
  AttentionMask mask;
  mask.causal = params.boolean("causal");
  mask.window = params.integer_or_null("window");
  mask.query_offset = params.integer("query_offset");
  mask.key_offset = params.integer("key_offset");
  mask.fully_masked = read_fully_masked(params);
  params.ignore("max_abs_score");  // for the judge
  return mask;
}

Sdpa Sdpa::load(const Params& params) {
  return {{params.number("scale"), params.number_or_null("softcap")}, read_mask(params)};
}

void run_sdpa(const BlockCall& call) {
  Sdpa sdpa = Sdpa::load(call.params);
  sdpa.mask.key_valid = call.optional_input("key_valid");
  sdpa.mask.explicit_mask = call.optional_input("mask");
  sdpa(call.ctx, call.output("out"), call.input("q"), call.input("k"), call.input("v"));
}

void run_causal_mask(const BlockCall& call) {
  AttentionMask mask = read_mask(call.params);
  mask.key_valid = call.optional_input("key_valid");
  const Tensor out = call.output("mask");
  const std::string& form = call.params.string("form");
  const int64_t queries = call.params.integer("queries"), keys = call.params.integer("keys");
  const int64_t batch = call.params.integer("batch");
  if (form != (out.dtype() == DType::boolean ? "bool" : "additive") ||
      out.shape() != Shape{batch, 1, queries, keys}) {
    throw BadInput(text(call.params.where(), ": a ", form, " mask of ", batch, " x 1 x ", queries,
                        " x ", keys, ", but the output is ", name_of(out.dtype()), ' ',
                        out.shape()));
  }
  mask.fully_masked = FullyMasked::uniform;  // HF fills with the lowest finite number
  call.ctx.ops.causal_mask(out, mask);
}

}  // namespace plumb::blocks
