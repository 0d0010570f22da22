// arguments.h as the host reads it.
#pragma once

#include <cstdint>

namespace plumb::portable {

using i32 = int32_t;
using i64 = int64_t;
using u32 = uint32_t;
using u64 = uint64_t;

#define STRUCT(name) struct name
#define END(name)
#include "kernels/portable/arguments.h"
#undef STRUCT
#undef END

}  // namespace plumb::portable
