#include "blocks/linear.h"

namespace plumb::blocks {

void run_linear(const BlockCall& call) {
  Linear::load(call.weights)(call.ctx, call.output("out"), call.input("x"));
}

}  // namespace plumb::blocks
