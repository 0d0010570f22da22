// A file in memory without a copy, which may be cut short while it is there.
#pragma once

#include <memory>

#include "harness/io/file.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

// The whole file, read-only, paged in as it is touched. To touch a page that the file no longer has
// would be a SIGBUS: here such pages read as zeros, in whichever thread it happens, and check()
// tells. At most 1024 files at once.
class MappedFile {
 public:
  // Error where the system has no room for it.
  explicit MappedFile(const File& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  // Throws BadInput where a part was missing when it was needed, or where the file has another
  // size or modification time than when it was mapped: what was read since cannot be trusted.
  void check() const;

 private:
  struct State {
    int64_t size, seconds, nanoseconds;
    bool operator==(const State&) const = default;
  };
  State state() const;

  std::string name_;
  Descriptor descriptor_;
  State before_{};
  char* data_ = nullptr;
  size_t bytes_ = 0;
  size_t slot_ = 0;
};

// A tensor in a mapped file, on a device whose ops work on host memory of `owner`. Nothing may
// write to it.
Tensor mapped_tensor(std::shared_ptr<const MappedFile> file, int64_t position, const void* owner,
                     DType dtype, const Shape& shape);

}  // namespace plumb::harness
