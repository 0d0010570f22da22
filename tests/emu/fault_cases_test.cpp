// Every planted fault is reported, and its repaired twin passes, at both wave widths and in several
// orders.
#include "tests/emu/fault_cases.h"

#include <fstream>
#include <regex>
#include <string>

#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/emu/checked_kernels.h"

namespace plumb {
namespace {

const std::string kRace = "race: ", kBlockRace = "of another block",
                  kDivergence = "divergence: ", kSharedOverrun = "a write outside shared memory",
                  kDeviceOverrun = "a write outside device memory",
                  kNoWait = "without wait_for_previous_kernel";
constexpr uint64_t kSeeds[] = {0, 1, 2, 3, 12345};

struct Outcome {
  bool right = false;
  std::string error;
};

Outcome run(bool (*body)(int, uint64_t), int wave, uint64_t seed) {
  try {
    return {body(wave, seed), ""};
  } catch (const DeviceError& error) {
    return {false, error.what()};
  }
}

// Every line that the error names, "barrier_faults.h:15", is one that its source marks as at fault.
// Returns their number.
int count_marked_lines(const std::string& error) {
  static const std::regex place(R"((\w+\.(?:h|cu)):(\d+))");
  int count = 0;
  for (std::sregex_iterator at(error.begin(), error.end(), place), end; at != end; ++at, ++count) {
    std::ifstream source("tests/emu/" + (*at)[1].str());
    std::string line;
    for (int i = std::stoi((*at)[2]); i > 0; --i) std::getline(source, line);
    INFO((*at)[0] << " is: " << line);
    REQUIRE(line.find("// fault") != std::string::npos);
  }
  return count;
}

// The error has the words and names the kernel; where a thread is at fault also its line, block and
// thread; of a race both lines and both threads.
void require_error(const std::string& error, const std::string& words) {
  INFO(error);
  REQUIRE(error.find(words) != std::string::npos);
  REQUIRE(std::regex_search(error, std::regex(R"(^\[\w+\] kernel \w+)")));
  if (words == kDeviceOverrun) return;  // seen when the launch had ended
  REQUIRE(error.find("block (") != std::string::npos);
  if (words == kSharedOverrun) return;  // seen when the block had ended
  if (words == kNoWait) return;         // no line is at fault
  const bool race = words == kRace || words == kBlockRace;
  REQUIRE(count_marked_lines(error) >= (race ? 2 : 1));
  if (words == kDivergence) return;  // all threads are at fault
  REQUIRE(std::regex_search(error, std::regex(R"(thread \(\d+,0,0\) lane \d+$)")));
  if (race) {
    REQUIRE(
        std::regex_search(error, std::regex(R"(and the \w+ at \w+\.h:\d+ by (thread|several))")));
  }
}

TEST_CASE("emu-check reports every planted fault and passes its repaired twin") {
  const auto& cases = emu_check::fault_cases();
  const FaultCase& fault = cases[GENERATE(range(size_t{0}, emu_check::fault_cases().size()))];
  const int wave = GENERATE(32, 64);
  INFO(fault.name << ", wave width " << wave);
  // That case opens the device.
  if (std::string(fault.name) == "read of a view over by one" && !has_checked_kernels()) return;
  for (const uint64_t seed : kSeeds) {
    INFO("seed " << seed);
    const Outcome good = run(fault.right, wave, seed);
    INFO(good.error);
    REQUIRE(good.right);
    if (wave == 32 && !fault.at_32) continue;
    const Outcome bad = run(fault.wrong, wave, seed);
    if (fault.checked) require_error(bad.error, fault.checked);
    else REQUIRE((bad.error.empty() && !bad.right));
  }
}

TEST_CASE("emu reports what needs no instrumentation and passes the repaired twins") {
  const auto& cases = emu::fault_cases();
  const FaultCase& fault = cases[GENERATE(range(size_t{0}, emu::fault_cases().size()))];
  const int wave = GENERATE(32, 64);
  INFO(fault.name << ", wave width " << wave);
  for (const uint64_t seed : kSeeds) {
    INFO("seed " << seed);
    const Outcome good = run(fault.right, wave, seed);
    INFO(good.error);
    REQUIRE(good.right);
    if (!fault.plain || (wave == 32 && !fault.at_32)) continue;
    require_error(run(fault.wrong, wave, seed).error, fault.plain);
  }
}

// The table of faults in full: what a missing barrier does to the plain emulator depends on the
// order, and some order among a few shows it.
TEST_CASE("emu: a missing barrier gives a wrong result in some order") {
  const auto& cases = emu::fault_cases();
  const size_t i = GENERATE(range(size_t{0}, size_t{4}));
  const int wave = GENERATE(32, 64);
  INFO(cases[i].name);
  int wrong = 0;
  for (const uint64_t seed : kSeeds) wrong += !run(cases[i].wrong, wave, seed).right;
  REQUIRE(wrong > 0);
}

}  // namespace
}  // namespace plumb
