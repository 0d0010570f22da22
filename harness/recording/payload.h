// A safetensors file of a recording: its tensors and their SHA-256. A large file is mapped, not
// copied, and hashed once as long as it does not change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "harness/io/mapped_file.h"
#include "harness/io/safetensors.h"
#include "harness/recording/known_hashes.h"

namespace plumb::harness {

// Thread-safe.
class Payload {
 public:
  explicit Payload(SafetensorsFile file);

  const SafetensorsFile& file() const { return file_; }
  // The tensor in host memory, which nothing may write to. BadInput where the file has changed
  // since it was opened.
  Tensor read(const std::string& name) const;
  // Of what read() gave; looked up where `expected` was found of the same bytes before.
  std::string sha256(const std::string& name, const Tensor& tensor,
                     const std::string& expected) const;
  // The same, whatever is remembered.
  std::string fresh_sha256(const std::string& name, const Tensor& tensor) const;
  bool mapped() const { return file_.file().size() >= kMapped; }
  int64_t hashed() const { return hashed_; }  // bytes so far

  static constexpr int64_t kMapped = int64_t{16} << 20;  // bytes of a file

 private:
  const MappedFile* map() const;
  bool remembers(const Tensor& tensor) const;

  SafetensorsFile file_;
  mutable std::once_flag once_;
  mutable std::shared_ptr<const MappedFile> map_;
  mutable std::unique_ptr<KnownHashes> known_;
  mutable std::atomic<int64_t> hashed_ = 0;
};

}  // namespace plumb::harness
