// A run's results as they become known, so that a run that was killed continues where it stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/io/file.h"
#include "harness/result/result.h"

namespace plumb::harness {

// The file is a first line that says what it is, then records that are only ever appended: eight
// bytes of length (little-endian), the SHA-256 of the payload in hexadecimal, the payload. The
// first record says of which run the journal is, every other one is a result
// (harness/replay/result_json.h).
//   Each record is one write, and synced (fdatasync) before the next checkpoint begins: neither a
//     kill nor a loss of power costs more than the checkpoints that were being judged.
//   A record that is not whole or does not match its SHA-256 ends the journal; what follows is cut
//     off, and those checkpoints run again.
//   Write error (disk full): UsageError naming the file, its bytes and the system's reason; the
//     journal is then what it was before that record.
//   Two runs with one journal at once: the second gets a UsageError.
class Journal {
 public:
  // What has to agree for results to be of this run, by name: "program", "device", ...
  using Facts = std::vector<std::pair<std::string, std::string>>;

  // Reads the journal, or begins one. Throws UsageError that names every fact that differs where it
  // is another run's, and for a file that is no journal, which stays as it is.
  Journal(const std::filesystem::path& path, const Facts& facts, const std::string& started);

  const std::string& started() const { return started_; }  // of the run's first start
  double seconds() const { return seconds_; }   // that the run had taken at its last result
  int64_t dropped() const { return dropped_; }  // bytes of a torn end that were cut off
  std::vector<CheckpointResult> take() { return std::move(results_); }

  // `seconds`: that the run took so far.
  void append(const CheckpointResult& result, double seconds);

 private:
  void begin(const Facts& facts, const std::string& started);
  void read(int64_t size, const Facts& facts);
  void check(std::string_view header, const Facts& facts);
  void write(std::string_view bytes);
  [[noreturn]] void fail(const char* action, int64_t at) const;

  std::filesystem::path path_;
  Descriptor descriptor_;
  int64_t end_ = 0;  // behind the last whole record
  int64_t dropped_ = 0;
  std::string started_;
  double seconds_ = 0;
  std::vector<CheckpointResult> results_;
};

}  // namespace plumb::harness
