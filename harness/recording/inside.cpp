#include "harness/recording/inside.h"

#include <algorithm>

#include "harness/io/printable.h"
#include "kernels/core/error.h"

namespace plumb::harness {

extern const char kContractWords[];  // fixtures/schema/contracts.json

namespace {

struct KnownWords {
  std::vector<std::string> roundings, words, allows;
};

const KnownWords& known_words() {
  static const KnownWords known = [] {
    const auto document = JsonDocument::parse("contracts.json", kContractWords);
    KnownWords out;
    for (const auto& [word, asked_of] : document->root().at("roundings").members()) {
      out.roundings.emplace_back(word);
    }
    for (const auto& [word, entry] : document->root().at("inside").members()) {
      out.words.emplace_back(word);
      out.allows.emplace_back(entry.at("allows").string());
    }
    return out;
  }();
  return known;
}

}  // namespace

const std::vector<std::string>& rounding_words() { return known_words().roundings; }

const std::vector<std::string>& inside_words() { return known_words().words; }

bool is_inside_word(std::string_view word) {
  const std::vector<std::string>& words = inside_words();
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string words_listed(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string inside_text(std::string_view word) {
  const std::vector<std::string>& words = inside_words();
  const auto at = std::find(words.begin(), words.end(), word) - words.begin();
  return text(word, ": ", known_words().allows.at(static_cast<size_t>(at)));
}

std::vector<std::string> read_inside(JsonValue value) {
  const std::vector<std::string>& words = inside_words();
  std::vector<std::string> out;
  auto from = words.begin();
  for (const JsonValue item : value.items()) {
    const auto found = std::find(from, words.end(), item.string());
    if (found == words.end()) {
      item.fail("is ", printable(item.string()), ", expected some of ", words_listed(words),
                ", in this order");
    }
    out.push_back(*found);
    from = found + 1;
  }
  if (out.empty()) value.fail("is empty: leave it out");
  return out;
}

}  // namespace plumb::harness
