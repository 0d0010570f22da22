// Lines of the table of ci/referee.
#pragma once

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "harness/referee/referee_rule.h"

namespace plumb::harness::testing {

// With our own float64 block, and by the recordings alone.
inline constexpr RefereeRule kRules[] = {RefereeRule::affordable, RefereeRule::never};

// The devices that are judged: PLUMB_REFEREE_DEVICES=cuda,emu:32.
inline std::vector<std::string> referee_devices() {
  const char* given = std::getenv("PLUMB_REFEREE_DEVICES");
  std::istringstream words(given ? given : "cpu,emu:32");
  std::vector<std::string> out;
  for (std::string word; std::getline(words, word, ',');) out.push_back(word);
  return out;
}

// Of `all`, how many by each rule; flushed, since the next line may take minutes.
inline void print_row(const std::string& words, int all, int refereed, int alone) {
  std::cout << std::left << std::setw(64) << words << std::right << std::setw(7) << all
            << std::setw(10) << refereed << std::setw(8) << alone << std::endl;
}

// What both do not agree on, by kind.
inline void print_kinds(const std::map<std::string, int>& kinds) {
  for (const auto& [words, count] : kinds) {
    std::cout << "    " << count << " x " << words << std::endl;
  }
}

}  // namespace plumb::harness::testing
