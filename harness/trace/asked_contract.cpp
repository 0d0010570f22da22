#include "harness/trace/asked_contract.h"

#include <algorithm>
#include <optional>

#include "harness/io/printable.h"
#include "harness/recording/inside.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// By its name, the last word of a contract in words; nothing for "inferred".
std::optional<RoundingPoints> points_named(std::string_view name) {
  using enum RoundingPoints;
  for (const RoundingPoints points : {eager, fused, flash}) {
    Contract contract;
    contract.points = points;
    if (to_string(contract).ends_with(text(' ', name))) return points;
  }
  return std::nullopt;
}

bool is_rounding_word(std::string_view word) {
  const std::vector<std::string>& words = rounding_words();
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<std::string_view> words_in(std::string_view words) {
  std::vector<std::string_view> out;
  for (size_t end = words.find('+'); end != std::string_view::npos; end = words.find('+')) {
    out.push_back(words.substr(0, end));
    words.remove_prefix(end + 1);
  }
  out.push_back(words);
  return out;
}

[[noreturn]] void refuse(std::string_view words, std::string_view word) {
  throw UsageError(text("--contract is ", printable(words), ": ", printable(word),
                        " is none; one of ", words_listed(rounding_words()), ", and any of ",
                        words_listed(inside_words()), ", joined by +"));
}

std::string to_record(const std::vector<std::string>& inside) {
  std::string out = "eager";
  for (const std::string& word : inside) out += '+' + word;
  return out;
}

}  // namespace

AskedContract asked_contract(std::string_view words) {
  AskedContract out;
  bool rounds = false;
  for (const std::string_view word : words_in(words)) {
    if (is_rounding_word(word) && !rounds) {
      rounds = true;
      out.points = points_named(word);
    } else if (is_inside_word(word)) {
      out.inside.emplace_back(word);
    } else {
      refuse(words, word);
    }
  }
  const std::vector<std::string> given = std::move(out.inside);
  out.inside.clear();
  for (const std::string& word : inside_words()) {
    if (std::find(given.begin(), given.end(), word) != given.end()) out.inside.push_back(word);
  }
  return out;
}

void require_recorded_with(const Recording& recording, const AskedContract& asked) {
  const std::vector<std::string> recorded = recording.inside();
  if (asked.inside.empty() || asked.inside == recorded) return;
  throw UsageError(text(
      "--contract has ", words_listed(asked.inside), ", but the simulated kernels of ",
      recording.name(), " do ", recorded.empty() ? "nothing of the kind" : words_listed(recorded),
      ": record it with `inspector record --contract ", to_record(asked.inside), '`'));
}

bool allows_inside(const Checkpoint& checkpoint, const Recording& recording, DType dtype) {
  return !checkpoint.inside.empty() && dtype == recording.dtype();
}

void note_inside(const Checkpoint& checkpoint, CheckpointResult& result) {
  for (const std::string& word : checkpoint.inside) {
    result.looser.push_back(word);
    result.details.push_back(inside_text(word));
  }
}

std::string contract_text(const Contract& contract, const std::vector<std::string>& inside) {
  std::string out = to_string(contract);
  for (const std::string& word : inside) out += '+' + word;
  return out;
}

}  // namespace plumb::harness
