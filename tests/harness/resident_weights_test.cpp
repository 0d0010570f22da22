// Weights stay on the device as long as there is room, and only as they were uploaded.
#include "harness/execution/resident_weights.h"

#include "harness/execution/placement.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

constexpr int64_t kBytes = int64_t{1} << 20;

Tensor weight(uint8_t value, int64_t bytes = kBytes) {
  const Tensor out = host_tensor(DType::u8, {bytes});
  std::fill_n(out.data<uint8_t>(), bytes, value);
  return out;
}

}  // namespace

TEST_CASE("a weight is uploaded once, until others need its room") {
  const auto device = open_device("cpu", 1);
  ResidentWeights resident(*device, 2 * kBytes);
  const Tensor a = weight(1), b = weight(2), c = weight(3);
  const auto first = resident.get("a", a);
  REQUIRE(first);
  CHECK(first->holds(a));
  resident.get("b", b);
  CHECK(resident.get("a", a) == first);
  CHECK(resident.uploads() == 2);
  resident.get("c", c);  // in the place of b, which was used least recently
  CHECK(resident.get("a", a) == first);
  CHECK(resident.uploads() == 3);
  CHECK(resident.get("b", b)->holds(b));
  CHECK(resident.uploads() == 4);
}

TEST_CASE("of weights that must take less room those used last stay") {
  const auto device = open_device("cpu", 1);
  ResidentWeights resident(*device, 3 * kBytes);
  const Tensor a = weight(1), b = weight(2), c = weight(3);
  for (const auto& [name, w] : {std::pair{"a", a}, {"b", b}, {"c", c}, {"a", a}}) {
    resident.get(name, w);
  }
  resident.keep_at_most(2 * kBytes);
  resident.get("a", a);
  resident.get("c", c);
  CHECK(resident.uploads() == 3);
  resident.get("b", b);
  resident.get("a", a);  // in whose place b is
  CHECK(resident.uploads() == 5);
}

TEST_CASE("small weights and those without room are not kept") {
  const auto device = open_device("cpu", 1);
  ResidentWeights resident(*device, 2 * kBytes);
  CHECK_FALSE(resident.get("small", weight(1, kBytes - 1)));
  CHECK_FALSE(resident.get("large", weight(1, 2 * kBytes + 1)));
  CHECK(resident.uploads() == 0);
}

TEST_CASE("a weight that was written to between two uses is uploaded again") {
  const auto device = open_device("cpu", 1);
  ResidentWeights resident(*device, 2 * kBytes);
  const Tensor a = weight(1);
  const Tensor there = resident.get("a", a)->tensor();
  there.data<uint8_t>()[kBytes / 2] = 9;
  CHECK(resident.get("a", a)->holds(a));
  CHECK(resident.uploads() == 2);
  const Tensor again = resident.get("a", a)->tensor();
  *(again.data<uint8_t>() + kBytes) = 9;  // a canary
  resident.get("a", a);
  CHECK(resident.uploads() == 3);
}

TEST_CASE("damage by a run is reported once and repaired before the next run") {
  const auto device = open_device("cpu", 1);
  ResidentWeights resident(*device, 4 * kBytes);
  HostOperands operands;
  operands.inputs["x"] = weight(5, 100);
  operands.weights["weight"] = weight(1);
  operands.outputs.push_back({"out", DType::u8, {16}});
  Placement placed(*device, operands, &resident, {{"weight", "a"}});
  const auto damage_of = [&](uint8_t* at) {
    placed.poison(0xff);
    *at ^= 1;
    return placed.damage();
  };
  CHECK(placed.damage().empty());
  CHECK(damage_of(placed.weights.at("weight").data<uint8_t>() + 77) ==
        "changed its weight \"weight\" in place");
  CHECK(damage_of(placed.inputs.at("x").data<uint8_t>() + 7) == "changed its input \"x\" in place");
  CHECK(damage_of(placed.outputs.at("out").data<uint8_t>() + 16) ==
        "wrote out of bounds: byte 0 past the end of output \"out\"");
  CHECK(damage_of(placed.weights.at("weight").data<uint8_t>() - 1) ==
        "wrote out of bounds: 1 byte(s) before the start of weight \"weight\"");
  CHECK(damage_of(placed.outputs.at("out").data<uint8_t>()).empty());
  CHECK(*placed.outputs.at("out").data<uint8_t>() == 0xfe);
}

}  // namespace plumb::harness
