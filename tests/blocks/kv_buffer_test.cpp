#include "blocks/kv_buffer.h"

#include "kernels/error.h"
#include "tests/blocks/support.h"

namespace plumb::testing {
namespace {

struct Seen {
  int64_t query_offset, key_offset, keys;
  bool in_place;
  bool operator==(const Seen&) const = default;
};

Seen next(KvBuffer& buffer, int64_t tokens) {
  const KvState s = buffer.next(tokens);
  const int64_t before = s.keys_before.defined() ? s.keys_before.dim(2) : 0;
  const bool in_place = s.keys.defined();
  return {s.query_offset, s.key_offset, in_place ? s.keys.dim(2) : before + tokens, in_place};
}

}  // namespace

TEST_CASE("a full layer's buffer grows in place up to its room") {
  Bench bench("cpu");
  KvBuffer buffer(bench.device(), DType::f32, 1, 2, 4, 10, std::nullopt);
  CHECK(next(buffer, 7) == Seen{0, 0, 7, true});
  CHECK(next(buffer, 1) == Seen{7, 0, 8, true});
  CHECK(next(buffer, 2) == Seen{8, 0, 10, true});
  CHECK(message_of<UsageError>([&] { buffer.next(1); }) ==
        "[kv_buffer] has room for 10 tokens, 10 are stored and 1 more are to come; ask for a "
        "larger maximum length");
}

TEST_CASE("a sliding layer's buffer moves to its start when it is full") {
  Bench bench("cpu");
  KvBuffer buffer(bench.device(), DType::f32, 1, 2, 4, 100, 4);  // 8 slots
  CHECK(next(buffer, 7) == Seen{0, 0, 7, true});
  CHECK(next(buffer, 1) == Seen{7, 0, 8, true});
  CHECK(next(buffer, 1) == Seen{8, 5, 4, false});  // the last 3 of 8, and the new one
  CHECK(next(buffer, 1) == Seen{9, 6, 4, true});   // 6, 7, 8 stayed
  CHECK(next(buffer, 20) == Seen{10, 7, 23, false});
  CHECK(next(buffer, 5) == Seen{30, 27, 8, true});
  CHECK(next(buffer, 1) == Seen{35, 32, 4, false});
}

TEST_CASE("a first call longer than a sliding layer's buffer") {
  Bench bench("cpu");
  KvBuffer buffer(bench.device(), DType::f32, 1, 2, 4, 100, 4);
  CHECK(next(buffer, 50) == Seen{0, 0, 50, false});
  CHECK(next(buffer, 1) == Seen{50, 47, 4, true});
}

}  // namespace plumb::testing
