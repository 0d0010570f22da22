// The parameters of a call as plugins and remote devices get them (kernels/plugin.h).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops/op_call.h"
#include "kernels/plugin.h"

namespace plumb {

struct CallParams {
  plumb_params first{};
  plumb_more_params more{};
};
CallParams params_of(const OpCall& call);

// One field by its name in plugin.h.
struct NamedParam {
  std::string_view name;
  std::vector<double> numbers;    // one, or those of an array
  std::vector<int64_t> integers;  // likewise; one of both is empty
};
// Those that are not 0.
std::vector<NamedParam> named(const CallParams& params);

}  // namespace plumb
