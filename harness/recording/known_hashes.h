// SHA-256 of a large file's tensors, remembered for the next time in the user's cache folder.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "harness/io/file.h"

namespace plumb::harness {

// What was hashed while the file had the same size, inode, modification and status change time
// counts; a change of any of these forgets it all. Not trusted is what was hashed within two
// seconds of the file's last change, which such times may not tell from a further one. Thread-safe;
// a cache that cannot be read or written costs time only.
class KnownHashes {
 public:
  explicit KnownHashes(const File& file);

  std::optional<std::string> find(const std::string& tensor) const;
  void add(const std::string& tensor, const std::string& sha256);

 private:
  void load();
  void keep(const std::string& line);

  const int descriptor_;
  const std::filesystem::path path_;  // of the cache; empty: there is no place for one
  const std::string state_;           // of the file, its cache's first line
  const bool settled_;
  bool begun_ = false;  // the cache has that line
  mutable std::mutex mutex_;
  std::map<std::string, std::string> known_;
};

}  // namespace plumb::harness
