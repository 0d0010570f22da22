// Thousands of seeded damages to a good recording: the reader refuses with BadInput or reads,
// nothing else, and never returns a payload that is not the recorded one.
#include <random>

#include "harness/recording/recording.h"
#include "tests/catch.h"
#include "tests/harness/allocations.h"
#include "tests/harness/recording_builder.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

// One to four changes: bytes and numbers replaced, pieces removed, doubled or moved, the end cut.
std::string damaged(std::string text, std::mt19937_64& random) {
  constexpr const char* kPieces[] = {"-1",
                                     "0",
                                     "9223372036854775807",
                                     "18446744073709551616",
                                     "1e400",
                                     "null",
                                     "true",
                                     "\"\"",
                                     "[]",
                                     "{}",
                                     "\"t0\"",
                                     "\xff",
                                     "\\u0000",
                                     "../",
                                     "[[[[",
                                     ","};
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !text.empty(); --changes) {
    const size_t at = random() % text.size();
    const size_t length = 1 + random() % 24;
    switch (random() % 7) {
      case 0: text[at] = static_cast<char>(text[at] ^ 1 << random() % 8); break;
      case 1: text[at] = static_cast<char>(random()); break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, text.substr(random() % text.size(), length)); break;
      case 4: text.insert(at, kPieces[random() % std::size(kPieces)]); break;
      case 5: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, end - digit, kPieces[random() % 5]);
        break;
      }
      default: text.resize(random() % 8 == 0 ? at : text.size());
    }
  }
  return text;
}

struct ReadOutcome {
  int read = 0;
  int refused = 0;
  std::string wrong;  // what must not happen
};

void read_all(const Recording& recording, ReadOutcome& outcome) {
  for (const char* key : {"t0", "t1", "t2", "t3", "w0"}) {
    try {
      const Tensor tensor = recording.read(key);
      if (tensor.numel() > 24) outcome.wrong = std::string("a payload grew: ") + key;
      ++outcome.read;
    } catch (const BadInput&) {
      ++outcome.refused;
    }
  }
}

ReadOutcome outcome_of(const fs::path& folder) {
  ReadOutcome outcome;
  try {
    read_all(Recording::open(folder), outcome);
  } catch (const BadInput& error) {
    ++outcome.refused;
    // Errors end up in reports and on terminals.
    for (const char c : std::string(error.what())) {
      if (static_cast<unsigned char>(c) < 0x20) outcome.wrong = "a control character in an error";
    }
  } catch (const std::exception& error) {
    outcome.wrong = error.what();
  }
  return outcome;
}

void damage_many(const char* file, int rounds) {
  const TemporaryFolder root;
  const fs::path folder = write_good_recording(root / "x");
  const fs::path path = folder / file;
  const std::string good = read_bytes(path);
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string bad = damaged(good, random);
    write_bytes(path, bad);
    ReadOutcome outcome;
    const int64_t peak = peak_of([&] { outcome = outcome_of(folder); });
    refused += outcome.refused > 0;
    if (!outcome.wrong.empty() || peak > int64_t{8} << 20) {
      CAPTURE(round, bad, peak);
      FAIL_CHECK(outcome.wrong);
    }
  }
  CHECK(refused > rounds / 2);
}

TEST_CASE("a damaged recording.json is refused or read, nothing else") {
  damage_many("recording.json", 4000);
}

TEST_CASE("a damaged tensors file is refused or read, nothing else") {
  damage_many("tensors.safetensors", 3000);
}

TEST_CASE("a damaged weights file is refused or read, nothing else") {
  damage_many("../weights-f32.safetensors", 1000);
}

}  // namespace
}  // namespace plumb::harness
