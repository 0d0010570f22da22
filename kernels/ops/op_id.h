// The ops of ops.h, and sets of them.
#pragma once

#include <bitset>
#include <string_view>

namespace plumb {

enum class OpId {
#define PLUMB_OP(name, ...) name,
#include "kernels/ops/op_list.h"
};
inline constexpr int kOpCount = 0
#define PLUMB_OP(name, ...) +1
#include "kernels/ops/op_list.h"
    ;
using OpSet = std::bitset<kOpCount>;

std::string_view name_of(OpId op);
bool is_fused(OpId op);        // has a default composition
bool is_composition(OpId op);  // which is all that devices have, but for plugins

}  // namespace plumb
