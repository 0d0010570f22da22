#include "blocks/state_cache.h"

#include <algorithm>

namespace plumb::blocks {

void run_conv_cache(const BlockCall& call) {
  const Tensor x = call.input("x"), out = call.output("out"), after = call.output("state_after");
  const Tensor before = call.optional_input("state_before");
  const int64_t tokens = x.dim(-1), kernel = call.params.integer("kernel");
  const int64_t past = before.defined() ? before.dim(-1) : std::max<int64_t>(kernel - tokens, 0);
  call.params.expect(out.dim(-1) == past + tokens && after.dim(-1) == kernel && kernel > 0 &&
                         past + tokens >= kernel,
                     "out has ", out.dim(-1), " columns, ", past, " before and ", tokens,
                     " new; state_after ", after.dim(-1), " of a kernel of ", kernel);
  Ops& ops = call.ctx.ops;
  if (before.defined()) ops.copy(out.slice(-1, 0, past), before);
  else ops.device().fill(out, 0);
  ops.copy(out.slice(-1, past, past + tokens), x);
  ops.copy(after, out.slice(-1, past + tokens - kernel, past + tokens));
}

void run_ssm_cache(const BlockCall& call) {
  const Tensor state = call.input("state"), out = call.output("out");
  call.ctx.ops.copy(call.output("state_after"), state);
  call.ctx.ops.copy(out, state);
}

}  // namespace plumb::blocks
