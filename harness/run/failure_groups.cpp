#include "harness/run/failure_groups.h"

#include <cctype>
#include <regex>
#include <set>

#include "harness/run/outcome.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr size_t kLongest = 2000;  // of a reason, as far as its cause is looked for

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The words with a mark in the place of every number, hexadecimal ones included.
std::string without_numbers(const std::string& words) {
  std::string out;
  for (size_t i = 0; i < words.size();) {
    if (!is_digit(words[i])) {
      out += words[i++];
      continue;
    }
    out += '#';
    while (i < words.size() && (std::isxdigit(static_cast<unsigned char>(words[i])) ||
                                words[i] == 'x' || words[i] == '.')) {
      ++i;
    }
  }
  return out;
}

// "race in sdpa.cu, tiles.h": which of its accesses meet, and in which launch, is chance.
std::string race_in(const std::string& reason) {
  static const std::regex source(R"(([\w.-]+\.(cu|cuh|cpp|h|c)):\d+)");
  std::set<std::string> files;
  const auto end = std::sregex_iterator();
  for (auto it = std::sregex_iterator(reason.begin(), reason.end(), source); it != end; ++it) {
    files.insert((*it)[1]);
  }
  std::string out;
  for (const std::string& file : files) out += (out.empty() ? "race in " : ", ") + file;
  return out.empty() ? "race" : out;
}

// Whether gates say what is wrong; else the reason is the cause: a device that gave up, bytes that
// differ between runs, memory that was overwritten.
bool told_by_gates(const CheckpointResult& result) {
  const auto worst = worst_gate(result);
  return result.status == Status::fail && worst && worst->ratio > 1;
}

std::string cause_of(const CheckpointResult& result, bool numbered) {
  if (result.known_bug) return result.known_bug->bug;
  const std::string& reason = result.reason;
  if (const size_t race = reason.find("race: "); race < kLongest) {
    return race_in(reason.substr(race, kLongest));
  }
  if (told_by_gates(result)) return "";
  const std::string words = reason.substr(0, kLongest);
  return numbered ? words : without_numbers(words);
}

}  // namespace

std::string cause_key(const CheckpointResult& result) {
  const std::string cause = cause_of(result, false);
  const std::string what = text(name_of(result.status), '\n', result.device, '\n', cause);
  if (result.chain) return text(what, '\n', result.recording);  // each names its own culprit
  const bool anywhere = result.status == Status::device_error;
  return anywhere ? what : text(what, '\n', result.block, '\n', result.dtype);
}

std::vector<FailureGroup> failure_groups(const std::vector<CheckpointResult>& results) {
  std::vector<FailureGroup> out;
  std::map<std::string, size_t> places;
  for (const CheckpointResult& result : results) {
    if (!is_failure(result.status)) continue;
    const auto [place, is_new] = places.try_emplace(cause_key(result), out.size());
    if (is_new) {
      out.push_back({result.status, result.block, result.device, result.dtype,
                     cause_of(result, true), 0, 0, "", "", "", ""});
    }
    FailureGroup& group = out[place->second];
    if (group.cause != cause_of(result, true)) group.cause = cause_of(result, false);
    ++group.checkpoints;
    if (group.block != result.block) group.block = "several blocks";
    if (group.dtype != result.dtype) group.dtype = "several dtypes";
    const auto worst = worst_gate(result);
    const double ratio = worst ? worst->ratio : 0;
    if (!is_new && !(ratio > group.ratio)) continue;
    group.ratio = ratio;
    group.recording = result.recording;
    group.checkpoint = result.checkpoint;
    group.reason = result.reason;
    group.again = result.again;
  }
  return out;
}

}  // namespace plumb::harness
