#include "harness/io/nearest_name.h"

#include <algorithm>
#include <cctype>

namespace plumb::harness {
namespace {

// What counts of a name.
std::string letters_of(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '_' || c == '-') continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Optimal string alignment: Levenshtein's distance, and neighbours that are swapped count once.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t exchanged = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, exchanged});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view typed,
                                        const std::vector<std::string>& known) {
  constexpr size_t kLongest = 200;  // longer names are no typos
  const std::string wanted = letters_of(typed.substr(0, kLongest));
  const std::string* nearest = nullptr;
  size_t least = 0;
  for (const std::string& name : known) {
    const std::string letters = letters_of(std::string_view(name).substr(0, kLongest));
    const bool part = wanted.size() >= 3 && letters.find(wanted) != std::string::npos;
    const size_t wrong = part ? 1 : distance(wanted, letters);
    if (3 * wrong > std::max(wanted.size(), letters.size())) continue;
    if (nearest && wrong >= least) continue;
    nearest = &name;
    least = wrong;
  }
  return nearest ? std::optional(*nearest) : std::nullopt;
}

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known) {
  const auto nearest = nearest_name(typed, known);
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

}  // namespace plumb::harness
