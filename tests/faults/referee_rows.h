// Lines of the table of ci/referee.
#pragma once

#include <iomanip>
#include <iostream>
#include <map>
#include <string>

#include "harness/referee/referee_rule.h"

namespace plumb::harness::testing {

// With our own float64 block, and by the recordings alone.
inline constexpr RefereeRule kRules[] = {RefereeRule::affordable, RefereeRule::never};

// Of `all`, how many by each rule; flushed, since the next line may take minutes.
inline void print_row(const std::string& words, int all, int refereed, int alone) {
  std::cout << std::left << std::setw(48) << words << std::right << std::setw(7) << all
            << std::setw(10) << refereed << std::setw(8) << alone << std::endl;
}

// What both do not agree on, by kind.
inline void print_kinds(const std::map<std::string, int>& kinds) {
  for (const auto& [words, count] : kinds) {
    std::cout << "    " << count << " x " << words << std::endl;
  }
}

}  // namespace plumb::harness::testing
