// The emulator's own rules: orders, limits of a launch, errors.
#include <cstdlib>
#include <set>

#include "kernels/core/device.h"
#include "kernels/core/error.h"
#include "kernels/emu/emulator.h"
#include "kernels/emu/random_order.h"
#include "tests/catch.h"
#include "tests/emu/checked_kernels.h"

namespace plumb {
namespace {

using emulator::Dim;
using emulator::Queue;

std::vector<uint64_t> permutation(emulator::RandomOrder& order, uint64_t count) {
  std::vector<uint64_t> out;
  order.each(count, [&](uint64_t i) { out.push_back(i); });
  return out;
}

// Launches a body that is given as a function without captures.
void launch(const Queue& queue, Dim grid, Dim block, size_t shared, emulator::Body body,
            const void* call = nullptr) {
  emulator::run({"test", "kernel_signature() [with auto Kernel = plumb::emu::body]"}, grid, block,
                shared, queue, body, call);
}

std::string error_of(const Queue& queue, Dim grid, Dim block, size_t shared, emulator::Body body) {
  try {
    launch(queue, grid, block, shared, body);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("every order is a permutation, seed 0 ascends, others differ") {
  const uint64_t count = GENERATE(1, 2, 31, 64, 100);
  emulator::RandomOrder ascending(0);
  std::vector<uint64_t> sorted = permutation(ascending, count);
  REQUIRE(std::is_sorted(sorted.begin(), sorted.end()));
  REQUIRE(sorted.size() == count);
  std::set<std::vector<uint64_t>> seen;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    emulator::RandomOrder order(seed), again(seed);
    std::vector<uint64_t> mixed = permutation(order, count);
    REQUIRE(mixed == permutation(again, count));
    seen.insert(mixed);
    std::sort(mixed.begin(), mixed.end());
    REQUIRE(mixed == sorted);
  }
  if (count > 30) REQUIRE(seen.size() > 4);
}

TEST_CASE("every thread of every block runs once, whatever the order") {
  const Queue queue{GENERATE(32, 64), false, GENERATE(0u, 1u, 2u, 7u)};
  const Dim grid{3, 2, 2}, block{5, 7, 3};
  std::vector<int> ran(3 * 2 * 2 * 5 * 7 * 3);
  std::vector<int>* const counts = &ran;
  launch(
      queue, grid, block, 0,
      [](const void* call) {
        const emulator::Thread& t = *emulator::current;
        const unsigned b = (t.block.z * 2 + t.block.y) * 3 + t.block.x;
        const unsigned linear = (t.thread.z * 7 + t.thread.y) * 5 + t.thread.x;
        auto& counted = **static_cast<std::vector<int>* const*>(call);
        ++counted[b * 105 + linear];
        if (linear != t.linear) counted[0] = 99;
      },
      &counts);
  REQUIRE(std::all_of(ran.begin(), ran.end(), [](int n) { return n == 1; }));
}

TEST_CASE("a launch that no GPU takes is refused, naming the numbers") {
  const Queue narrow{32, false, 0}, wide{64, false, 0};
  const auto nothing = [](const void*) {};
  REQUIRE_THAT(error_of(narrow, {1}, {1025}, 0, nothing),
               Catch::Contains("1025 threads in a block"));
  REQUIRE_THAT(error_of(narrow, {1}, {0}, 0, nothing), Catch::Contains("0 threads in a block"));
  REQUIRE_THAT(error_of(narrow, {0}, {1}, 0, nothing), Catch::Contains("a grid of 0 x 1 x 1"));
  REQUIRE_THAT(error_of(narrow, {1, 65536}, {1}, 0, nothing), Catch::Contains("1 x 65536 x 1"));
  REQUIRE(error_of(narrow, {1}, {1}, 227 << 10, nothing) == "no error");
  REQUIRE_THAT(error_of(narrow, {1}, {1}, (227 << 10) + 1, nothing), Catch::Contains("232448"));
  REQUIRE(error_of(wide, {1}, {1}, 64 << 10, nothing) == "no error");
  REQUIRE_THAT(error_of(wide, {1}, {1}, (64 << 10) + 1, nothing), Catch::Contains("65536"));
}

TEST_CASE("an exception in a kernel is an error of the launch, and the next launch runs") {
  const Queue queue{32, false, 0};
  const std::string error =
      error_of(queue, {1}, {64}, 0, [](const void*) { throw std::runtime_error("boom"); });
  REQUIRE_THAT(error, Catch::Contains("[test] kernel body: exception thrown in a kernel: boom"));
  REQUIRE(error_of(queue, {1}, {64}, 0, [](const void*) {
            emulator::block_barrier(emulator::Site::current());
          }) == "no error");
}

TEST_CASE("device memory: freed blocks are not handed out again, copies stay inside") {
  void* first = emulator::memory_allocate(100, false);
  emulator::memory_free(first);
  void* second = emulator::memory_allocate(100, false);
  REQUIRE(second != first);
  char host[101] = {};
  emulator::copy_to_device(second, host, 100);
  REQUIRE_THROWS_AS(emulator::copy_to_device(second, host, 101), DeviceError);
  REQUIRE_THROWS_AS(emulator::copy_to_host(host, first, 1), DeviceError);
  REQUIRE_THROWS_AS(emulator::memory_allocate(size_t{1} << 60, false), DeviceError);
  emulator::memory_free(second);
}

TEST_CASE("device memory: blocks of no bytes have addresses of their own") {
  void* const first = emulator::memory_allocate(0, true);
  void* const second = emulator::memory_allocate(0, true);  // it never ended
  REQUIRE(second != first);
  emulator::memory_free(second);
  emulator::memory_free(first);
}

TEST_CASE("PLUMB_EMU_SEED is a number or an error, unknown devices name the known ones") {
  setenv("PLUMB_EMU_SEED", "12x", 1);
  REQUIRE_THROWS_WITH(open_device("emu:32"), Catch::Contains("PLUMB_EMU_SEED is \"12x\""));
  unsetenv("PLUMB_EMU_SEED");
  REQUIRE(open_device("emu")->name() == "emu:32");
  if (has_checked_kernels()) {
    REQUIRE(open_device("emu-check")->name() == "emu-check:32");
  } else {
    REQUIRE_THROWS_WITH(open_device("emu-check"), Catch::Contains("no checked kernels"));
  }
  REQUIRE_THROWS_WITH(open_device("emu:48"), Catch::Contains("emu:64"));
}

}  // namespace
}  // namespace plumb
