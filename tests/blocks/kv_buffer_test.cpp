#include "blocks/kv_buffer.h"

#include <cmath>

#include "kernels/core/error.h"
#include "kernels/ops/slots.h"
#include "tests/blocks/support.h"

namespace plumb::blocks::testing {
namespace {

struct Seen {
  int64_t query_offset, key_offset, keys;
  bool operator==(const Seen&) const = default;
};

// A layer's buffer, and what it says attention sees.
struct Layer {
  Bench bench{"cpu"};
  Tensor position = bench.device().allocate(DType::i64, {1});
  KvBuffer buffer;

  Layer(int64_t room, std::optional<int64_t> window, CacheKind kind = CacheKind::dynamic)
      : buffer(bench.device(), DType::f32, 1, 2, 4, room, window, position, kind) {}

  Seen next(int64_t tokens) {
    const KvState s = buffer.next(tokens);
    const auto seen = [&](int64_t slots) { return Seen{s.query_offset, s.key_offset, slots}; };
    if (const auto* in_order = std::get_if<KvInOrder>(&s.cache)) return seen(in_order->keys.dim(2));
    const auto& sliding = std::get<KvSliding>(s.cache);
    if (sliding.stored) return seen(sliding.stored->keys.dim(2));
    const Tensor& before = sliding.before.keys_before;
    return seen((before.defined() ? before.dim(2) : 0) + tokens);
  }
  // Slots that the next token sees.
  SlotRange next_visible() {
    const KvState s = buffer.next(1);
    const KvSlots& slots = std::get<KvStep>(s.cache).slots;
    return visible_slots(slots.past.now, slots.window);
  }
};

bool operator==(const SlotRange& range, const std::pair<int64_t, int64_t>& expected) {
  return range.begin == expected.first && range.end == expected.second;
}

}  // namespace

TEST_CASE("a full layer's buffer grows in place up to its room") {
  Layer layer(10, std::nullopt);
  CHECK(layer.next(7) == Seen{0, 0, 7});
  CHECK((layer.next_visible() == std::pair<int64_t, int64_t>{0, 8}));
  CHECK(layer.next(2) == Seen{8, 0, 10});
  CHECK(message_of<UsageError>([&] { layer.next(1); }) ==
        "[kv_buffer] has room for 10 tokens, 10 are stored and 1 more are to come; ask for a "
        "larger maximum length");
}

TEST_CASE("a sliding layer sees a window, which wraps") {
  Layer layer(100, 4);  // 8 slots
  CHECK(layer.next(7) == Seen{0, 0, 7});
  CHECK((layer.next_visible() == std::pair<int64_t, int64_t>{0, 4}));  // tokens 4 to 7
  CHECK((layer.next_visible() == std::pair<int64_t, int64_t>{1, 5}));
  CHECK(layer.next(20) == Seen{9, 6, 23});  // 6, 7, 8 and the new ones
  layer.buffer.count_replayed();
  CHECK(layer.next(5) == Seen{30, 27, 8});
  CHECK((layer.next_visible() == std::pair<int64_t, int64_t>{0, 4}));
}

TEST_CASE("a sliding layer whose window is never full does not slide") {
  Layer layer(4, 4);
  CHECK(layer.next(3) == Seen{0, 0, 3});
  CHECK((layer.next_visible() == std::pair<int64_t, int64_t>{0, 4}));
  CHECK_THROWS_AS(layer.next(1), UsageError);
}

TEST_CASE("buffers of fixed length are seen whole while new tokens fit") {
  Layer full(10, std::nullopt, CacheKind::fixed);
  CHECK(full.next(7) == Seen{0, 0, 10});
  CHECK((full.next_visible() == std::pair<int64_t, int64_t>{0, 8}));
  CHECK(full.next(2) == Seen{8, 0, 10});
  CHECK_THROWS_AS(full.next(1), UsageError);
  Layer sliding(100, 4, CacheKind::fixed);
  CHECK(sliding.next(3) == Seen{0, 0, 4});
  CHECK(sliding.next(5) == Seen{3, 0, 8});
  CHECK((sliding.next_visible() == std::pair<int64_t, int64_t>{1, 5}));  // tokens 5 to 8
}

// The shapes that an observer is shown.
struct Shapes final : Observer {
  std::vector<int64_t> slots;
  double sum = 0;
  void probe(const std::string&, std::string_view, const Tensor& value) override {
    slots.push_back(value.dim(2));
    for (const double v : values_of(value)) sum += std::fabs(v);
  }
};

TEST_CASE("buffers of fixed length are shown whole, unused slots being zero") {
  for (const auto& [window, held] : {std::pair(std::optional<int64_t>(), int64_t{10}),
                                     std::pair(std::optional<int64_t>(4), int64_t{4})}) {
    Layer layer(10, window, CacheKind::fixed);
    Shapes shapes;
    Context ctx{layer.bench.ops(), &shapes};
    layer.buffer.show(ctx, "kv_cache");
    layer.next(6);
    layer.buffer.show(ctx, "kv_cache");
    CHECK(shapes.slots == std::vector<int64_t>(4, held));
    CHECK(shapes.sum == 0);
  }
}

TEST_CASE("a layer slides only with the position of its sequence") {
  Bench bench("cpu");
  CHECK(message_of<UsageError>([&] { KvBuffer(bench.device(), DType::f32, 1, 2, 4, 100, 4); }) ==
        "[kv_buffer] a window of 4 without the position of the sequence");
}

}  // namespace plumb::blocks::testing
