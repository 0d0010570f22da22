// The safetensors format: an 8-byte little-endian length, a JSON header, and the tensors' bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/io/file.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

struct SafetensorsEntry {
  DType dtype;
  Shape shape;
  int64_t begin;  // first byte, counted from the end of the header
  int64_t end;
};

// A file whose header has been checked against its real size: tensors follow each other without
// hole or overlap up to the end, and each has as many bytes as its shape and dtype say. Nothing is
// allocated on the strength of a claim that was not checked. Reading is thread-safe.
class SafetensorsFile {
 public:
  // Throws BadInput naming the file, the tensor, both numbers and the offset.
  explicit SafetensorsFile(File file);

  const File& file() const { return file_; }
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const { return entries_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

  // The length and the JSON text in front of the first tensor.
  int64_t header_bytes() const { return payload_; }

  // Of the tensor's first byte in the file.
  int64_t position(const SafetensorsEntry& entry) const { return payload_ + entry.begin; }

  // A copy in contiguous host memory. BadInput where there is no such tensor, or where the file
  // has become shorter.
  Tensor read(std::string_view name) const;

 private:
  void check_layout() const;

  File file_;
  int64_t payload_ = 0;  // offset of the first tensor in the file
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// Whether a name is 1 to kLongestName bytes long and has no control characters.
inline constexpr size_t kLongestName = 1024;
bool is_sane_name(std::string_view name);

// The name that safetensors gives a dtype: "BF16", "BOOL".
std::string_view safetensors_name(DType dtype);

// What a file of these tensors begins with, one behind the other, with words about it where there
// are any. Throws UsageError for a name that appears twice or that no reader would take.
struct SafetensorsItem {
  std::string name;
  DType dtype;
  Shape shape;
};
std::string safetensors_header(const std::vector<SafetensorsItem>& items,
                               const std::map<std::string, std::string>& metadata = {});

// Writes host tensors (strided ones as contiguous), atomically. Throws UsageError also where the
// disk fails.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);
void write_safetensors(AtomicFile& file, const NamedTensors& tensors);  // commits it

}  // namespace plumb::harness
