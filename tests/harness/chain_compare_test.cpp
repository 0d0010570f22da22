// Stored slots that a later call must leave alone.
#include "harness/chain/chain_compare.h"

#include <numeric>

#include "tests/catch.h"

namespace plumb::harness {
namespace {

// [1, 2, slots, 1], slot s of head h holding 100 h + s.
Tensor slots(int64_t first, int64_t count) {
  const Tensor out = host_tensor(DType::f32, {1, 2, count, 1});
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t s = 0; s < count; ++s) {
      out.data<float>()[h * count + s] = static_cast<float>(100 * h + first + s);
    }
  }
  return out;
}

TEST_CASE("stored slots are compared byte by byte, wherever a call moves them") {
  CHECK(changed_bytes(slots(0, 3), slots(0, 5), 2, 2) == 0);  // full: two slots more
  CHECK(changed_bytes(slots(0, 4), slots(1, 4), 2, 1) == 0);  // sliding: the first has gone
  CHECK(changed_bytes(slots(0, 4), slots(3, 4), 2, 3) == 0);
  CHECK(changed_bytes(slots(0, 4), slots(9, 4), 2, 4) == 0);  // nothing of it is left
  CHECK(changed_bytes(slots(0, 2), slots(0, 7), 2, 7) == 0);  // the first call of another sequence
  const Tensor after = slots(1, 4);
  after.data<float>()[4] = 101.5f;  // head 1, slot 1: one of its four bytes
  CHECK(changed_bytes(slots(0, 4), after, 2, 1) == 1);
  after.data<float>()[7] = -1;  // the fresh one may be anything
  CHECK(changed_bytes(slots(0, 4), after, 2, 1) == 1);
  CHECK(changed_bytes(slots(0, 4), slots(0, 4), 2, 1) > 0);  // not moved
}

// Of four, the first `used` in use, from token `first` on; the others are zero.
Tensor buffer(int64_t first, int64_t used) {
  const Tensor out = slots(first, 4);
  for (int64_t i = 0; i < 8; ++i) out.data<float>()[i] *= i % 4 < used ? 1 : 0;
  return out;
}

TEST_CASE("a buffer of fixed length: unused slots are compared, too") {
  CHECK(changed_bytes(buffer(0, 0), buffer(0, 2), 2, 2, 0) == 0);
  CHECK(changed_bytes(buffer(0, 1), buffer(0, 3), 2, 2, 1) == 0);
  CHECK(changed_bytes(buffer(0, 3), buffer(1, 4), 2, 2, 3) == 0);  // full with its first new one
  CHECK(changed_bytes(buffer(1, 4), buffer(2, 4), 2, 1, 5) == 0);
  CHECK(changed_bytes(buffer(0, 1), buffer(7, 4), 2, 10, 1) == 0);  // nothing of it is left
  CHECK(changed_bytes(buffer(0, 1), buffer(0, 4), 2, 2, 1) > 0);    // one too many written
  CHECK(changed_bytes(buffer(0, 0), buffer(0, 3), 2, 2, 0) > 0);
  CHECK(changed_bytes(buffer(0, 3), buffer(0, 4), 2, 2, 3) > 0);  // not moved
  const Tensor after = buffer(1, 4);
  after.data<float>()[4] = 101.5f;  // head 1, slot 0: one of its four bytes
  CHECK(changed_bytes(buffer(0, 3), after, 2, 2, 3) == 1);
}

}  // namespace
}  // namespace plumb::harness
