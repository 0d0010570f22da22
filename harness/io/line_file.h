// A file of lines that grows during a long run and takes its name at the end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "harness/io/file.h"
#include "kernels/core/error.h"

namespace plumb::harness {

// Lines go to "<path>.partial", each with one write call when it is known; commit() syncs that file
// and renames it to `path`. So `path` is always a complete report, the old one until the new one is
// whole.
//   Run cut short (exception, signal, power): "<path>.partial" stays where it has lines. Every
//     complete one is good, at most the last is torn (has no line feed). The next run to the same
//     path replaces it.
//   Write error (disk full): the partial file is removed, since the space is needed more than a
//     report that is not trusted. Nothing can be written from then on.
//   Two runs to one path at once: the second is refused.
// Everything throws UsageError, which names the file, the bytes written and the system's reason.
// A device, a FIFO and what stdout or stderr is redirected to are written in place.
class LineFile {
 public:
  explicit LineFile(const std::filesystem::path& path);
  ~LineFile();
  LineFile(LineFile&&) = delete;

  void write(std::string_view line);  // a line feed is appended
  void commit();

 private:
  [[noreturn]] void fail(const char* action);
  void give_up();

  std::filesystem::path path_;     // its final path
  std::filesystem::path partial_;  // where it is written; empty when written in place
  Descriptor descriptor_;
  int64_t written_ = 0;
};

}  // namespace plumb::harness
